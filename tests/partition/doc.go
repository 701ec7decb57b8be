// Package partition cuts the network between hosts, for real, and checks that everything comes back and that nothing acknowledged is lost.
//
// Each test has a network of its own: a namespace for every host, which runs `postrider host`, and one for what they share, with a bridge, PostgreSQL and
// Redis. Faults are the kernel's: a link that is down, blackhole routes, packets that nftables drops or answers with a reset; delay comes from a relay,
// since few kernels have netem. Clients sit on the host they talk to, so a host that is cut off goes on being asked.
//
// The namespaces have no name and are held by this process alone: with it they go, however it ends, and all that is in them. The machine's own network is
// not touched. It takes Linux, root, and the programs ip and nft (Debian: iproute2, nftables); elsewhere the tests are skipped, and say so.
//
// What a user may expect in each case, and how long it took here: docs/mesh.md.
package partition
