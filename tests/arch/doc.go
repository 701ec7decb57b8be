// Package arch holds no code, only tests of the shape of the repository: who imports whom, how large things are, that
// what documents and deployment files name exists. Each test reports everything that is wrong at once.
package arch
