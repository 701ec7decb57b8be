package fleet

import (
	"fmt"
	"strings"
	"testing"
)

// meshes are each host's settings of the mesh.
func (o ProcessOptions) meshes(t testing.TB) [][]string {
	t.Helper()
	out := make([][]string, o.Hosts)
	if !o.Mesh {
		return out
	}
	var peers []string
	for n := range out {
		listen := freeAddr(t)
		reached := listen
		if o.Through != nil {
			reached = o.Through(fmt.Sprintf("mesh %d", n+1), listen)
		}
		out[n] = []string{"POSTRIDER_MESH_LISTEN=" + listen, "POSTRIDER_MESH_ADVERTISE=" + reached}
		peers = append(peers, reached)
	}
	for n := range out {
		out[n] = append(out[n], "POSTRIDER_MESH_PEERS="+strings.Join(peers, ","))
		if !o.Redis {
			out[n] = append(out[n], "POSTRIDER_REDIS_URL=")
		}
	}
	return out
}
