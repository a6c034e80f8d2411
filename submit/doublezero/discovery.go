// SPDX-License-Identifier: Apache-2.0

package doublezero

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/mr-tron/base58"
	"go.uber.org/zap"

	"github.com/xtwamp/xtwamp/probe/target"
	"github.com/xtwamp/xtwamp/submit"
)

const (
	refreshLimit  = 30 * time.Second // for asking the ledger once
	firstAskAgain = time.Second      // after asking the ledger has failed; doubles
	lookAgain     = 5 * time.Second  // after the host's addresses could not be listed

	// believeEmpty is how many answers in a row must leave out all links that were there: to stop measuring everything costs more than to
	// measure for two more refreshes what is gone.
	believeEmpty = 3
)

// DiscoveryConfig is what a Discovery works with.
type DiscoveryConfig struct {
	Endpoints http.RoundTripper // to the ledger: a *endpoint.Pool
	Program   Pubkey            // the serviceability program
	Device    Pubkey            // this device

	// Addresses lists the host's, in the kernel's order.
	Addresses func() ([]LocalAddress, error)

	Target  target.Target // what targets have in common; the link says its name, addresses, interface and two more labels
	Refresh time.Duration // between two times that the ledger is asked

	// State is a file that keeps the list for the next start; "": none.
	State string

	Logger *zap.Logger

	// Beat, if set, is called at each step of the loop with the time until the next step at the latest, for a watchdog.
	Beat func(next time.Duration)
}

// Validate reports what is missing or out of range.
func (c DiscoveryConfig) Validate() error {
	switch {
	case c.Endpoints == nil || c.Addresses == nil || c.Logger == nil:
		return errors.New("discovery without endpoints, addresses or logger")
	case c.Program == Pubkey{} || c.Device == Pubkey{}:
		return errors.New("discovery without program or device")
	case c.Refresh <= 0:
		return fmt.Errorf("discovery refresh %v: must be above 0", c.Refresh)
	}
	return validateCommon(c.Target)
}

// validateCommon reports what is wrong with what targets have in common.
func validateCommon(t target.Target) error {
	t.Name, t.Address = "link", "192.0.2.1"
	return t.Validate()
}

// Discovery finds what a device has to measure: its links, as the ledger tells them, at the addresses that the host has for them.
//
// Its list is replaced as a whole when a new one is complete, and by nothing less: whatever fails, the last one stays. It begins with the
// list of the process before.
type Discovery struct {
	cfg    DiscoveryConfig
	logger *zap.Logger
	client *client
	retry  *backoff.ExponentialBackOff

	// Of Run alone.
	slot    uint64 // that the last answer was of
	empty   int    // answers in a row without any link
	teller  target.Teller
	told    *topology // by the log
	asking  submit.Outage
	saving  submit.Outage
	unsaved bool

	looking   sync.Mutex // held while the list is made and told
	common    target.Target
	changed   func([]target.Target)
	published bool
	listing   submit.Outage

	mu       sync.Mutex
	topology *topology // nil: not known yet
	fromFile bool
	recalled bool // the list was read that was saved, or cannot be
	targets  []target.Target
	links    []DiscoveredLink
	success  time.Time
	askErr   error
	listErr  error
}

// topology is what the ledger says of a device.
type topology struct {
	Program Pubkey     `json:"program"`
	Device  Pubkey     `json:"device"`
	Code    string     `json:"code"`
	Links   []linkFact `json:"links"` // by name
	Gone    []Pubkey   `json:"gone"`  // links that were there before, of which the ledger has confirmed that they are no more; the newest last
}

// maxGone is how many links that are gone are remembered.
const maxGone = 256

func (t *topology) equal(o *topology) bool {
	return t != nil && t.Program == o.Program && t.Device == o.Device && t.Code == o.Code && slices.Equal(t.Links, o.Links) &&
		slices.Equal(t.Gone, o.Gone)
}

// NewDiscovery returns a Discovery that does nothing until Run is called.
func NewDiscovery(cfg DiscoveryConfig) (*Discovery, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	first := min(firstAskAgain, cfg.Refresh)
	return &Discovery{
		cfg:     cfg,
		common:  cfg.Target,
		logger:  cfg.Logger.Named("discovery"),
		client:  newClient(cfg.Endpoints),
		retry:   &backoff.ExponentialBackOff{InitialInterval: first, RandomizationFactor: 0.2, Multiplier: 2, MaxInterval: cfg.Refresh},
		asking:  submit.Outage{Begins: "the ledger does not tell the links, the last list stays", Ends: "the ledger tells the links again"},
		saving:  submit.Outage{Begins: "the list of links cannot be saved", Ends: "the list of links is saved again"},
		listing: submit.Outage{Begins: "addresses of the host cannot be listed, the last list stays", Ends: "addresses of the host are listed again"},
	}, nil
}

// String names the loop.
func (d *Discovery) String() string { return "discovery" }

// Run finds targets until ctx ends and returns nil then. It calls changed with all of them as soon as there is a list, and each time that
// the list differs: one call after another, which must neither call Look nor change what they are given. After a panic it may be called
// again.
func (d *Discovery) Run(ctx context.Context, changed func([]target.Target)) error {
	d.tell(changed)
	defer d.tell(nil)
	d.remember()
	d.Look()
	for {
		began := time.Now()
		d.beat(refreshLimit)
		err := d.refresh(ctx)
		if ctx.Err() != nil {
			return nil
		}
		d.Look()
		next := began.Add(d.cfg.Refresh)
		if err != nil && !errors.Is(err, errEmpty) { // that is to be confirmed, not to be hurried
			next = time.Now().Add(d.retry.NextBackOff())
		} else {
			d.retry.Reset()
		}
		if !d.wait(ctx, next) {
			return nil
		}
	}
}

// wait waits for a moment, and looks again at addresses that could not be listed. It reports whether ctx has not ended.
func (d *Discovery) wait(ctx context.Context, until time.Time) bool {
	for {
		left := max(time.Until(until), 0)
		blind := d.blind()
		if blind {
			left = min(left, lookAgain)
		}
		d.beat(left)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(left):
		}
		if blind {
			d.Look()
		}
		if !time.Now().Before(until) {
			return true
		}
	}
}

func (d *Discovery) beat(next time.Duration) {
	if d.cfg.Beat != nil {
		d.cfg.Beat(next)
	}
}

// tell says who is told of lists.
func (d *Discovery) tell(changed func([]target.Target)) {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.changed, d.published = changed, false
}

// blind reports whether the last look at the addresses failed.
func (d *Discovery) blind() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.listErr != nil
}

// Look looks at the host's addresses at once, without asking the ledger: to be called when they may have changed. While Run does not run
// it does nothing. It may be called from any goroutine.
func (d *Discovery) Look() {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.mu.Lock()
	known := d.topology
	d.mu.Unlock()
	if d.changed == nil || known == nil {
		return
	}
	addresses, err := d.cfg.Addresses()
	if err != nil {
		d.listing.GoesOn(d.logger, err)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.listErr = err
		return
	}
	d.listing.Over(d.logger)
	targets, links := d.match(known, addresses)

	d.mu.Lock()
	same := d.published && reflect.DeepEqual(targets, d.targets)
	d.targets, d.links, d.listErr = targets, links, nil
	d.mu.Unlock()
	if same {
		return
	}
	d.published = false // until it is told
	d.changed(slices.Clone(targets))
	d.published = true
}

// SetTarget changes what targets have in common, and looks with that at once. Like Look it is not to be called by the function that is
// told of lists.
func (d *Discovery) SetTarget(t target.Target) error {
	if err := validateCommon(t); err != nil {
		return err
	}
	d.looking.Lock()
	d.common = t
	d.looking.Unlock()
	d.Look()
	return nil
}

// match makes targets of links at addresses. d.looking is held.
func (d *Discovery) match(known *topology, addresses []LocalAddress) (targets []target.Target, links []DiscoveredLink) {
	for _, l := range known.Links {
		info := DiscoveredLink{
			Link: l.Link, Code: l.Code, Status: l.Status.String(), Device: l.Target, DeviceCode: l.TargetCode,
		}
		t, why := d.target(l, addresses)
		if why != nil {
			info.Why = why.Error()
		}
		if t != nil {
			targets = append(targets, *t)
			info.Target, info.Address = t.Name, t.Address
			if why == nil {
				info.Interface, info.Source = t.Interface, t.Source.String()
			}
		}
		links = append(links, info)
	}
	return targets, links
}

// refresh asks the ledger and takes over what it says.
func (d *Discovery) refresh(ctx context.Context) error {
	known, err := d.ask(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	d.mu.Lock()
	d.askErr = err
	last, success := d.topology, d.success
	if err == nil {
		d.topology, d.success, d.fromFile = known, time.Now(), false
	}
	d.mu.Unlock()
	if err != nil {
		d.asking.GoesOn(d.logger, err)
		// Nodes that stay behind the last answer may be right: the one that gave it may have been wrong about its slot.
		if kindOf(err) == kindBehind && time.Since(success) > d.cfg.Refresh+forget {
			d.slot = 0
		}
		return err
	}
	d.asking.Over(d.logger)
	d.unsaved = d.unsaved || !last.equal(known)
	d.report(known)
	d.save(known)
	return nil
}

// state is what the log says of a list.
func (t *topology) state() string { return fmt.Sprint(t.Code, t.Links) }

// report logs how a list differs from the one that it told last. Links that come and go have few lines.
func (d *Discovery) report(known *topology) {
	fields, due := d.teller.Tell(known.state(), false)
	if !due {
		return
	}
	old := make(map[Pubkey]linkFact)
	if d.told != nil {
		for _, l := range d.told.Links {
			old[l.Link] = l
		}
	}
	d.told = known
	var added, other []string
	probed := 0
	for _, l := range known.Links {
		if l.Status.Probed() {
			probed++
		}
		switch before, there := old[l.Link]; {
		case !there:
			added = append(added, l.Name)
		case before != l:
			other = append(other, l.Name)
		}
		delete(old, l.Link)
	}
	var removed []string
	for _, l := range old {
		removed = append(removed, l.Name)
	}
	slices.Sort(removed)
	d.logger.Info("links of the device", append(fields, zap.Int("links", len(known.Links)), zap.Int("probed", probed),
		zap.String("device", known.Code), zap.Strings("added", added), zap.Strings("changed", other), zap.Strings("removed", removed))...)
}

// errEmpty is an answer that leaves out everything that was there.
var errEmpty = errors.New("no link is left")

// accountStart is how much of an account is asked for: a link up to its code, and a device up to its own, whatever they are called.
var accountStart = &dataSlice{Length: 512}

// ask asks the ledger for the device and its links. It costs three calls.
func (d *Discovery) ask(ctx context.Context) (*topology, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	links := make(map[Pubkey]LinkAccount)
	slot := d.slot
	for _, offset := range []int{offsetSideA, offsetSideZ} {
		var err error
		if slot, err = d.askSide(ctx, offset, slot, links); err != nil {
			return nil, err
		}
	}

	// That a list leaves a link out says little: a node may search what it has not indexed to the end. So it is read by its address.
	var missing []Pubkey
	last := d.last()
	for _, l := range last {
		if _, ok := links[l.Link]; !ok {
			missing = append(missing, l.Link)
		}
	}
	ends := make(map[Pubkey]bool)
	for _, l := range links {
		ends[l.SideA], ends[l.SideZ] = true, true
	}
	for _, l := range last {
		ends[l.Target] = true
	}
	delete(ends, d.cfg.Device)
	keys := slices.Concat([]Pubkey{d.cfg.Device}, missing, slices.SortedFunc(maps.Keys(ends), compareKeys))
	accounts, err := d.read(ctx, keys, slot)
	if err != nil {
		return nil, err
	}
	if accounts[d.cfg.Device] == nil {
		return nil, fmt.Errorf("device %s: no such account", d.cfg.Device)
	}
	device, err := ParseDevice(accounts[d.cfg.Device])
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", d.cfg.Device, err)
	}
	for _, key := range missing {
		if accounts[key] == nil {
			continue
		}
		l, err := ParseLink(accounts[key])
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", key, err)
		}
		if l.SideA == d.cfg.Device || l.SideZ == d.cfg.Device {
			links[key] = l
		}
	}
	if len(links) == 0 && len(last) > 0 {
		if d.empty++; d.empty < believeEmpty {
			return nil, fmt.Errorf("%w of %d: answer %d of %d that it takes to believe it", errEmpty, len(last), d.empty, believeEmpty)
		}
	}
	d.empty = 0

	t := &topology{Program: d.cfg.Program, Device: d.cfg.Device, Code: printable(device.Code, maxCode)}
	for key, l := range links {
		fact := newFact(key, l, d.cfg.Device)
		if data := accounts[fact.Target]; data != nil {
			remote, err := ParseDevice(data)
			if err != nil {
				return nil, fmt.Errorf("device %s: %w", fact.Target, err)
			}
			fact.TargetCode, fact.TargetExists = printable(remote.Code, maxCode), true
		}
		t.Links = append(t.Links, fact)
	}
	nameLinks(t.Links, last)
	t.Gone = d.gone(links, missing)
	d.slot = slot
	return t, nil
}

// gone adds those of the missing that are not among links to those that were gone before.
func (d *Discovery) gone(links map[Pubkey]LinkAccount, missing []Pubkey) []Pubkey {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []Pubkey
	if d.topology != nil {
		all = append(all, d.topology.Gone...)
	}
	all = slices.DeleteFunc(append(all, missing...), func(link Pubkey) bool {
		_, there := links[link]
		return there
	})
	return all[max(0, len(all)-maxGone):]
}

// Gone reports whether a link was one of the device's, and the ledger has confirmed that it is not any more.
func (d *Discovery) Gone(link Pubkey) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.topology != nil && slices.Contains(d.topology.Gone, link)
}

func (d *Discovery) last() []linkFact {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.topology == nil {
		return nil
	}
	return d.topology.Links
}

// askSide adds to links those that have the device at the end whose key is at offset.
func (d *Discovery) askSide(ctx context.Context, offset int, minSlot uint64, links map[Pubkey]LinkAccount) (slot uint64, err error) {
	filters := []filter{
		{memcmp{Offset: 0, Bytes: base58.Encode([]byte{typeLink})}},
		{memcmp{Offset: offset, Bytes: d.cfg.Device.String()}},
	}
	found, err := caughtUp(ctx, func(ctx context.Context) (list []programAccount, err error) {
		list, slot, err = d.client.getProgramAccounts(ctx, d.cfg.Program, filters, accountStart, finalized, minSlot)
		return list, err
	})
	if err != nil {
		return 0, err
	}
	seen := make(map[Pubkey]bool)
	for _, a := range found {
		if a.Account.Owner != d.cfg.Program || seen[a.Address] {
			return 0, fmt.Errorf("link %s: %w: account of program %s, or there twice", a.Address, errNonsense, a.Account.Owner)
		}
		seen[a.Address] = true
		l, err := ParseLink(a.Account.Data)
		if err != nil {
			return 0, fmt.Errorf("link %s: %w", a.Address, err)
		}
		if side := map[int]Pubkey{offsetSideA: l.SideA, offsetSideZ: l.SideZ}[offset]; side != d.cfg.Device {
			return 0, fmt.Errorf("link %s: %w: none of this device", a.Address, errNonsense)
		}
		links[a.Address] = l
	}
	return slot, nil
}

// read returns the data of accounts of the program. Those that do not exist, or hold nothing but money, are missing.
func (d *Discovery) read(ctx context.Context, keys []Pubkey, minSlot uint64) (map[Pubkey][]byte, error) {
	accounts, err := caughtUp(ctx, func(ctx context.Context) ([]*accountInfo, error) {
		accounts, _, err := d.client.getMultipleAccounts(ctx, keys, accountStart, finalized, minSlot)
		return accounts, err
	})
	if err != nil {
		return nil, err
	}
	data := make(map[Pubkey][]byte)
	for i, a := range accounts {
		switch {
		case a == nil || len(a.Data) == 0:
		case a.Owner != d.cfg.Program:
			return nil, fmt.Errorf("account %s: belongs to program %s, expected %s", keys[i], a.Owner, d.cfg.Program)
		default:
			data[keys[i]] = a.Data
		}
	}
	return data, nil
}

func compareKeys(a, b Pubkey) int { return slices.Compare(a[:], b[:]) }

// DiscoveryStatus is what a Discovery knows.
type DiscoveryStatus struct {
	Device      Pubkey           `json:"device"`
	Code        string           `json:"code,omitempty"`
	Links       []DiscoveredLink `json:"links"`
	FromFile    bool             `json:"from_file,omitempty"` // what is known is what an earlier process has saved
	LastSuccess time.Time        `json:"last_success,omitzero"`
	LastError   string           `json:"last_error,omitempty"` // "" once it is over
}

// DiscoveredLink is a link of the device, and what became of it.
type DiscoveredLink struct {
	Link       Pubkey `json:"link"`
	Code       string `json:"code"`
	Status     string `json:"status"`
	Device     Pubkey `json:"device"` // at the other end
	DeviceCode string `json:"device_code,omitempty"`
	Target     string `json:"target,omitempty"` // name; "": it is none
	Interface  string `json:"interface,omitempty"`
	Source     string `json:"source,omitempty"`
	Address    string `json:"address,omitempty"`
	Why        string `json:"why,omitempty"` // it is no target, or nothing can be sent
}

// Status may be called from any goroutine.
func (d *Discovery) Status() DiscoveryStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := DiscoveryStatus{Device: d.cfg.Device, Links: append([]DiscoveredLink{}, d.links...), FromFile: d.fromFile, LastSuccess: d.success}
	if d.topology != nil {
		s.Code = d.topology.Code
	}
	if err := cmp.Or(d.listErr, d.askErr); err != nil {
		s.LastError = err.Error()
	}
	return s
}
