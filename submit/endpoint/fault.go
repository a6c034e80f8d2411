// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Kinds of faults: why a request failed, or why a candidate that answers is not good.
const (
	FaultRefused      = "refused"
	FaultReset        = "reset" // also: closed without or within an answer
	FaultTimeout      = "timeout"
	FaultUnreachable  = "unreachable" // no route, or another error of the operating system
	FaultTLS          = "tls"
	FaultServerError  = "server_error" // 5xx
	FaultRateLimited  = "rate_limited" // 429
	FaultInvalid      = "invalid"      // an answer that makes no sense
	FaultWrongCluster = "wrong_cluster"
	FaultLagging      = "lagging"  // slot far behind the others
	FaultAhead        = "ahead"    // slot far ahead of the others
	FaultStuck        = "stuck"    // slot stands still while others' advance
	FaultUnlanded     = "unlanded" // what it takes has no effect
)

// kinds are all of them. Each is counted from 0 on, so that whoever scrapes counters sees the first one.
var kinds = [...]string{
	FaultRefused, FaultReset, FaultTimeout, FaultUnreachable, FaultTLS, FaultServerError, FaultRateLimited, FaultInvalid, FaultWrongCluster,
	FaultLagging, FaultAhead, FaultStuck, FaultUnlanded,
}

// ErrNoCandidate says that no address is known, or none was found out in time.
var ErrNoCandidate = errors.New("no endpoint address known")

// Error is how a call failed. Its text holds nothing of a URL but scheme, host and port. What it was made of is deliberately not in its
// chain, where a text with a secret might be; errors.Is nevertheless finds there what it looks for.
type Error struct {
	Endpoint string // name of the candidate
	Kind     string // one of the constants Fault*
	text     string
	cause    error
}

func (e *Error) Error() string        { return e.Endpoint + ": " + e.text }
func (e *Error) Is(target error) bool { return errors.Is(e.cause, target) }

// Timeout makes an Error a timeout as package net understands it.
func (e *Error) Timeout() bool { return e.Kind == FaultTimeout }

// fault is one reason to find a candidate bad. The zero value means none.
type fault struct {
	kind       string
	text       string        // for people; without secrets
	cause      error         // may hold secrets
	retryAfter time.Duration // with FaultRateLimited: how long to leave it alone, if it said so
}

func (f fault) err(name string) error {
	return &Error{Endpoint: name, Kind: f.kind, text: f.text, cause: f.cause}
}

// errTooLarge is the cause when a body is longer than we care to read.
var errTooLarge = errors.New("answer too large")

// transportFault classifies the error of a request that got no whole answer.
func transportFault(err error, mask func(string) string) fault {
	f := fault{cause: err}
	switch {
	case errors.Is(err, errTooLarge):
		f.kind, f.text = FaultInvalid, fmt.Sprintf("answer of more than %d MiB", maxAnswer>>20)
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		f.kind, f.text = FaultTimeout, "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		f.kind, f.text = FaultRefused, "connection refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		f.kind, f.text = FaultReset, "connection closed by the other side"
	case isTLS(err):
		f.kind, f.text = FaultTLS, mask(err.Error())
	default:
		// The remaining texts of net/http may quote what the server sent, in pieces that no mask would recognise.
		text := err.Error()
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			f.kind, f.text = FaultUnreachable, errno.Error()
		} else if strings.HasSuffix(text, "client connection lost") { // how net/http's HTTP/2 words it
			f.kind, f.text = FaultTimeout, "no answer to a ping"
		} else if strings.Contains(text, "malformed") {
			f.kind, f.text = FaultInvalid, "malformed answer"
		} else {
			f.kind, f.text = FaultReset, "connection broke"
		}
	}
	return f
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

func isTLS(err error) bool {
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	_, name := errors.AsType[x509.HostnameError](err)
	return verify || record || alert || name
}

// statusFault classifies an answer by its HTTP status; it is about the server, not about what was asked of it.
func statusFault(r *http.Response) fault {
	switch {
	case r.StatusCode == http.StatusTooManyRequests:
		return fault{kind: FaultRateLimited, text: "status 429", retryAfter: retryAfter(r.Header)}
	case r.StatusCode >= 500:
		return fault{kind: FaultServerError, text: fmt.Sprintf("status %d", r.StatusCode)}
	case r.StatusCode >= 300 && r.StatusCode < 400:
		return fault{kind: FaultInvalid, text: fmt.Sprintf("status %d, a redirect", r.StatusCode)}
	}
	return fault{}
}

// retryAfter reads the header of that name, seconds or a date (RFC 9110 section 10.2.3). A date is taken relative to the one that the
// answer bears, since our own clock may be wrong. 0: nothing that we understand.
func retryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if seconds, err := strconv.ParseInt(value, 10, 64); err == nil {
		return time.Duration(min(max(seconds, 0), int64(maxRetryAfter/time.Second))) * time.Second
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return min(max(until.Sub(now), 0), maxRetryAfter)
}
