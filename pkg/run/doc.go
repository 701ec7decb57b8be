// Package run starts, joins and ends the parts of a process.
//
// main is one line, os.Exit(run.Main("dispatcher", dispatcher.Defaults(), dispatcher.Run)): Main reads the configuration, lends an Env, turns
// the first SIGTERM or SIGINT into the end of the context and the second into an immediate exit, and returns the exit code. Inside a service, All and
// Layers own its goroutines: the first one to end ends the others, all are waited for, and a panic becomes an error.
//
// Only the caller of Main may end the process.
package run
