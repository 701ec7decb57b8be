package server

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/tenant"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	"postrider.dev/services/ingress/internal/domain"
)

func tenantToWire(t domain.Tenant) *adminv1.Tenant {
	return &adminv1.Tenant{Id: string(t.ID), CreatedAt: timestamppb.New(t.CreatedAt)}
}

func keyToWire(k domain.APIKey) *adminv1.APIKey {
	return &adminv1.APIKey{
		Id: string(k.ID), Tenant: string(k.Tenant), Name: k.Name, Role: roleToWire(k.Role),
		CreatedAt: timestamppb.New(k.CreatedAt), ExpiresAt: instant(k.ExpiresAt), RevokedAt: instant(k.RevokedAt),
	}
}

func instant(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func roleToWire(r tenant.Role) adminv1.Role {
	switch r {
	case tenant.Read:
		return adminv1.Role_ROLE_READ
	case tenant.Write:
		return adminv1.Role_ROLE_WRITE
	case tenant.Admin:
		return adminv1.Role_ROLE_ADMIN
	case tenant.NoRole:
	}
	return adminv1.Role_ROLE_UNSPECIFIED
}

func roleFromWire(r adminv1.Role) tenant.Role {
	switch r {
	case adminv1.Role_ROLE_READ:
		return tenant.Read
	case adminv1.Role_ROLE_WRITE:
		return tenant.Write
	case adminv1.Role_ROLE_ADMIN:
		return tenant.Admin
	case adminv1.Role_ROLE_UNSPECIFIED:
	}
	return tenant.NoRole
}
