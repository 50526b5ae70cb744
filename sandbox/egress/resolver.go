package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
)

// hostResolver asks the host's file of names and then its name servers, for
// complete names only: no search domain is tried. The standard resolver does not
// find complete names, with their dot, in the file.
type hostResolver struct{ file, servers *net.Resolver }

var errNoServers = errors.New("only the file is asked")

func newHostResolver() hostResolver {
	none := func(context.Context, string, string) (net.Conn, error) { return nil, errNoServers }
	return hostResolver{file: &net.Resolver{PreferGo: true, Dial: none}, servers: net.DefaultResolver}
}

// LookupNetIP implements Resolver.
func (r hostResolver) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	if found, err := r.file.LookupNetIP(ctx, network, strings.TrimSuffix(host, ".")); err == nil && len(found) > 0 {
		return found, nil
	}
	return r.servers.LookupNetIP(ctx, network, host)
}
