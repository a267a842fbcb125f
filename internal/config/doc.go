// Package config fills a program's settings from its flags, its environment and
// files. A program has one table of [Setting]s; each has a flag, a variable, a
// key, a default, and the place in memory that its value goes to:
//
//	flag  >  variable  >  file  >  default
//
// The file is the one that --config or PAWL_CONFIG names, or else pawl.yaml in
// the working directory. Beside it there is a file of [Contexts], which are
// named ways to reach clusters: one of them stands in for all settings that are
// marked as Cluster, where it was named by something that ranks above whatever
// else names brokers.
//
// What is wrong is reported all at once, each by the name that the user wrote
// and, in a file, its line; a name that is not known comes with the nearest one
// that is. No secret is in any of it.
package config
