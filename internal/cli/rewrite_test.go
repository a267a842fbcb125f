package cli

import "flag"

// rewrite has tests write down what they see as what they want, for the
// difference to be looked at.
var rewrite = flag.Bool("rewrite", false, "rewrite the files of testdata, and generated documents")
