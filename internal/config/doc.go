// Package config fills a program's settings from its flags and its
// environment. A program has one table of [Setting]s; each has a flag, a
// variable, a default, and the place in memory that its value goes to. Flags
// win over variables, variables over defaults.
//
// What is wrong is reported all at once, each by the name that the user wrote,
// and a name that is not known comes with the nearest one that is.
package config
