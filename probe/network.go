// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/xtwamp/xtwamp/probe/store"
	"github.com/xtwamp/xtwamp/probe/target"
)

// network is all that the engine needs from the host: the kernel's one is
// hostNetwork, tests simulate another.
type network interface {
	// run reads what arrives and hands it to the engine, until ctx ends.
	run(ctx context.Context)
	// look hands over what has arrived and waits to be asked for. The engine
	// asks at the end of each slot, without its lock, if it works in slots.
	look() error
	// flush sends what flows have put off to send it together. Engine.mu is
	// held. A probe that does not leave then is given to Engine.unsent.
	flush()
	// open makes a way to the target of req. It may block, up to ctx.
	// A *downError says that the path cannot be used for now.
	open(ctx context.Context, req openRequest) (flow, FlowInfo, error)
	// close ends whatever open left for the flows in common.
	close() error
}

// flow sends one path's probes. Its methods are called with Engine.mu held
// and do not block.
type flow interface {
	// ready is asked before a probe is dated and sent. A *downError says why
	// it cannot leave.
	ready() error
	// send transmits one probe, or puts it off until the next flush. A
	// *downError says why it could not leave.
	send(packet []byte, seq uint32) error
	// settle is the last look at what the kernel knows of a probe without a
	// reply, before it is given up. It may deliver replies itself.
	settle(pr *probe)
	// alive is false once the interface is gone.
	alive() bool
	close()
}

// openRequest is what is to be opened, and what to avoid.
type openRequest struct {
	path   *path
	target target.Target
	// current is the address in use, which is kept while its name still has
	// it.
	current netip.Addr
	// refresh: only look the name up again; errUnchanged if current holds.
	refresh bool
	// wayOnly: of a refresh, leave the name out.
	wayOnly bool
	// via is the interface that the path left by, or should.
	via string
	// noBPF: the kernel half does not see this path's packets.
	noBPF bool
}

// errUnchanged answers a refresh whose name still has the address in use.
var errUnchanged = errors.New("address unchanged")

// downError says why a path or probe could not be sent.
type downError struct {
	reason store.Reason
	// reopen: the flow is no good any more.
	reopen bool
	// cause, if not nil, is the interface that keeps all its paths from being
	// used or, without a name, the namespace that is not there.
	cause *string
	err   error
}

func (e *downError) Error() string { return e.err.Error() }
func (e *downError) Unwrap() error { return e.err }

func down(reason store.Reason, format string, args ...any) *downError {
	return &downError{reason: reason, err: fmt.Errorf(format, args...)}
}
