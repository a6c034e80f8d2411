// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/netns"
	"github.com/xtwamp/xtwamp/probe"
)

type reflectOptions struct {
	listen     string
	interfaces []string
	allow      []string
	namespace  string
	mode       string
	stateful   bool
}

func newReflectCommand(e env) *cobra.Command {
	var o reflectOptions
	cmd := &cobra.Command{
		Use:   "reflect",
		Short: "Answer test packets",
		Long: `Answer STAMP, TWAMP-Light and DoubleZero test packets until stopped.

Only sources that are allowed get an answer: one of our answers is never
larger than its request, beyond the 44 bytes of the smallest STAMP packet, but
a reflector for everybody is still one that others can make send packets.

Where it can, the kernel answers as packets come in (mode auto: tcx, else
clsact). That is before any firewall rule: whom --allow names gets answers
whatever the firewall says. Mode socket obeys it. What the kernel does not
answer, such as requests with TLVs other than padding, the socket does.

Mode xdp answers in the driver (native XDP), else as auto. Many drivers reset
the port when a first XDP program comes and when the last one goes, also if
this process is killed: ixgbe, igb, i40e and mlx5 do. On veth it halves TCP
throughput, and answers get lost unless the far end has an XDP program too. It
answers at the addresses of the interface and of loopback, on interfaces that
carry no VLANs.`,
		Example: `  xtwamp reflect --allow 192.0.2.1 --allow 2001:db8::/64
  xtwamp reflect --listen 192.0.2.2:862 --allow any
  xtwamp reflect --allow 192.0.2.0/24 --interface eth1 --interface eth2
  xtwamp reflect --allow 192.0.2.0/24 --mode socket`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return reflectPackets(cmd.Context(), e, o) },
	}
	f := cmd.Flags()
	f.StringVar(&o.listen, "listen", ":862", "UDP address to answer on")
	f.StringArrayVar(&o.interfaces, "interface", nil,
		"interface on which the kernel answers (repeatable); default: those that lead to who is allowed, with any all that are up")
	f.StringArrayVar(&o.allow, "allow", nil, "address or CIDR that gets answers, or any (repeatable)")
	f.StringVar(&o.namespace, "netns", "", "network namespace, name or path")
	f.StringVar(&o.mode, "mode", "auto", "where to answer: auto (tcx, else clsact, else socket), tcx, clsact, xdp or socket")
	f.BoolVar(&o.stateful, "stateful", false, "number the answers of each session, to tell the direction of loss")
	return cmd
}

func reflectPackets(ctx context.Context, e env, o reflectOptions) error {
	listen, err := parseListen(o.listen)
	if err != nil {
		return usage(fmt.Errorf("listen %w", err))
	}
	allow, everybody, err := parseAllow(o.allow)
	if err != nil {
		return usage(fmt.Errorf("allow %w", err))
	}
	if len(allow) == 0 && !everybody {
		return usage(errors.New("nobody is allowed: name them with --allow ADDRESS or --allow CIDR, or say --allow any"))
	}
	mode, err := parseReflectorMode(o.mode, o.stateful)
	if err != nil {
		return usage(err)
	}
	var ns *netns.Namespace
	if o.namespace != "" {
		if ns, err = netns.Open(o.namespace); err != nil {
			return usage(err)
		}
		defer ns.Close()
	}
	log, err := newLogger(e, logConfig{Level: "info", Format: "auto"})
	if err != nil {
		return err
	}
	r, err := probe.NewReflector(probe.ReflectorConfig{
		Listen:      []netip.AddrPort{listen},
		Allow:       allow,
		AllowAny:    everybody,
		Stateful:    o.stateful,
		RateLimit:   defaultConfig("").Reflector.RateLimit,
		ExtendShort: true,
		Mode:        mode,
		Interfaces:  o.interfaces,
		Namespace:   ns,
		Logger:      log,
	})
	if err != nil {
		return usage(err)
	}
	log.Info("reflecting", zap.Stringers("listen", r.Addrs()), zap.String("allow", strings.Join(o.allow, ", ")),
		zap.Stringer("mode", mode))
	if e.dropRights != nil {
		if err := e.dropRights(log, ns != nil); err != nil {
			log.Error("rights are kept that are not needed any more", zap.Error(err))
		}
	}
	err = r.Run(ctx)
	counts, failed := r.Counts()
	for _, c := range counts {
		log.Info("packets", zap.String("interface", c.Interface), zap.Stringer("mode", c.Mode),
			zap.String("result", c.Result), zap.Uint64("count", c.Count))
	}
	return errors.Join(err, failed)
}

// parseReflectorMode reads a mode and checks that a stateful reflector can be
// had in it.
func parseReflectorMode(name string, stateful bool) (probe.ReflectorMode, error) {
	mode, err := probe.ParseReflectorMode(name)
	if err != nil {
		return 0, err
	}
	if stateful && (mode == probe.ReflectTCX || mode == probe.ReflectClsact || mode == probe.ReflectXDP) {
		return 0, fmt.Errorf("mode %q: the kernel keeps no sessions; stateful needs auto or socket", name)
	}
	return mode, nil
}
