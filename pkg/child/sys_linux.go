package child

import "syscall"

func attributes(spec Spec) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: spec.DeathSignal}
	if spec.User != nil {
		attr.Credential = &syscall.Credential{Uid: spec.User.UID, Gid: spec.User.GID}
	}
	return attr
}
