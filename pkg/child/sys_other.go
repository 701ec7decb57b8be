//go:build !linux

package child

import "syscall"

// attributes: there is no parent death signal here.
func attributes(spec Spec) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if spec.User != nil {
		attr.Credential = &syscall.Credential{Uid: spec.User.UID, Gid: spec.User.GID}
	}
	return attr
}
