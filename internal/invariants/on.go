//go:build invariants

package invariants

// Enabled says whether checks and crash points are compiled in.
const Enabled = true
