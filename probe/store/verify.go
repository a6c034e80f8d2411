// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"sort"
)

// pageSize is the page size of every file, on every machine.
const pageSize = 4096

// Layout of a bbolt file, version 2. Integers are in the byte order of the machine.
const (
	pageHeader    = 16 // id u64, flags u16, count u16, overflow u32
	elementHeader = 16 // branch: pos u32, ksize u32, page u64; leaf: flags u32, pos u32, ksize u32, vsize u32
	bucketHeader  = 16 // root page u64, sequence u64
	metaSize      = 64 // magic, version, page size, flags u32; root, sequence, freelist, pages, transaction, checksum u64

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10

	leafBucket = 0x01

	noFreelist = math.MaxUint64

	boltMagic   = 0xED0CDAED
	boltVersion = 2
)

var order = binary.NativeEndian

// meta is the newest valid meta page of a file.
type meta struct {
	root  uint64 // page of the root bucket
	free  uint64 // page of the free list, or noFreelist
	pages uint64 // pages in use or free; everything above has never been written
	tx    uint64
	torn  bool // the other meta page is not valid: what it held, the last transaction perhaps, is gone
}

// readMeta reads the two meta pages. bbolt panics with its locks held if it finds none valid, so this is asked before each transaction.
// Of two pages one may be half written at this moment, never both.
func readMeta(f io.ReaderAt) (meta, error) {
	var buf [2 * pageSize]byte
	if n, err := f.ReadAt(buf[:], 0); errors.Is(err, io.EOF) {
		return meta{}, fmt.Errorf("%w: %d bytes are no database", ErrCorrupt, n)
	} else if err != nil {
		return meta{}, fmt.Errorf("read meta pages: %w", err)
	}
	first, ok0 := parseMeta(buf[:pageSize])
	second, ok1 := parseMeta(buf[pageSize:])
	switch {
	case !ok0 && !ok1:
		return meta{}, fmt.Errorf("%w: no valid meta page", ErrCorrupt)
	case ok0 && (!ok1 || first.tx > second.tx):
		first.torn = !ok1
		return first, nil
	default:
		second.torn = !ok0
		return second, nil
	}
}

func parseMeta(page []byte) (meta, bool) {
	b := page[pageHeader : pageHeader+metaSize]
	hash := fnv.New64a()
	hash.Write(b[:metaSize-8])
	if order.Uint32(b) != boltMagic || order.Uint32(b[4:]) != boltVersion || order.Uint32(b[8:]) != pageSize || order.Uint64(b[56:]) != hash.Sum64() {
		return meta{}, false
	}
	return meta{root: order.Uint64(b[16:]), free: order.Uint64(b[32:]), pages: order.Uint64(b[40:]), tx: order.Uint64(b[48:])}, true
}

// verify walks every page that the newest meta page leads to and returns an error that is ErrCorrupt if bbolt could stumble over one.
//
// It exists because bbolt, when it opens a file, walks the tree in a goroutine of its own: a panic or memory fault there ends the process
// and nobody can recover it. Here a bad page is an error. The file must be locked.
func verify(f io.ReaderAt) (meta, error) {
	m, err := readMeta(f)
	if err != nil {
		return m, err
	}
	w := newWalker(f, m.pages)
	if err := w.all(m.root, nil, nil); err != nil {
		return m, err
	}
	return m, w.freelist(m.free)
}

// walker reads pages and checks all that bbolt takes for granted. It does so to the byte, because bbolt does not only panic over a bad page,
// which can be recovered, but also ends the process: a branch that leads back to itself lets it recurse or collect pages until no memory
// is left, a wrong size lets it allocate gigabytes, and a position outside a small bucket, which it copies to the heap, makes a pointer
// that the garbage collector does not forgive.
type walker struct {
	file  io.ReaderAt
	pages uint64              // of the meta page
	seen  map[uint64]struct{} // a page that two others lead to is an error, so no loop is endless
}

func newWalker(f io.ReaderAt, pages uint64) *walker {
	return &walker{file: f, pages: pages, seen: map[uint64]struct{}{}}
}

// node is a page that was checked. Keys below it are in [low, high); nil is no limit.
type node struct {
	low, high []byte
	keys      [][]byte // of a branch: the first key of each child
	pages     []uint64 // of a branch: the children
	children  []*node  // of a branch: those that were checked already
	buckets   []uint64 // of a leaf: the root pages of the buckets in it
}

// bounds returns between which keys the child is.
func (n *node) bounds(child int) (low, high []byte) {
	if child+1 < len(n.keys) {
		return n.keys[child], n.keys[child+1]
	}
	return n.keys[child], n.high
}

func (w *walker) bad(id uint64, format string, args ...any) error {
	return fmt.Errorf("%w: page %d: %s", ErrCorrupt, id, fmt.Sprintf(format, args...))
}

// all checks the page and everything below it, buckets in buckets too.
func (w *walker) all(id uint64, low, high []byte) error {
	n, err := w.open(id, low, high)
	if err != nil {
		return err
	}
	for i, page := range n.pages {
		low, high := n.bounds(i)
		if err := w.all(page, low, high); err != nil {
			return err
		}
	}
	for _, root := range n.buckets {
		if err := w.all(root, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// open checks one page, the keys of which must be in [low, high), and nothing below it.
func (w *walker) open(id uint64, low, high []byte) (*node, error) {
	page, err := w.read(id)
	if err != nil {
		return nil, err
	}
	n := &node{low: low, high: high}
	var used int
	switch flags := order.Uint16(page[8:]); flags {
	case flagLeaf:
		used, err = w.leaf(id, page, n)
	case flagBranch:
		used, err = w.branch(id, page, n)
	default:
		return nil, w.bad(id, "flags %#x", flags)
	}
	if err != nil {
		return nil, err
	}
	if need := (used + pageSize - 1) / pageSize * pageSize; need != len(page) {
		return nil, w.bad(id, "%d bytes on %d pages", used, len(page)/pageSize)
	}
	return n, nil
}

// child returns the i-th child of a branch, checked.
func (w *walker) child(n *node, i int) (*node, error) {
	if n.children == nil {
		n.children = make([]*node, len(n.pages))
	}
	if n.children[i] == nil {
		low, high := n.bounds(i)
		child, err := w.open(n.pages[i], low, high)
		if err != nil {
			return nil, err
		}
		n.children[i] = child
	}
	return n.children[i], nil
}

// path checks the pages between n and the leaf where key belongs and returns that leaf.
func (w *walker) path(n *node, key []byte) (leaf *node, err error) {
	for len(n.pages) > 0 {
		if n, err = w.child(n, n.index(key)); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// index returns the child of a branch where key belongs: the last one that does not begin behind it, or the first.
func (n *node) index(key []byte) int {
	return max(sort.Search(len(n.keys), func(i int) bool { return bytes.Compare(n.keys[i], key) > 0 })-1, 0)
}

// around does what path does and checks, on each level, also the pages on both sides as far as to the leaves next to the one of the key:
// a cursor may step there, and a page that lost a key may be joined with one of them.
func (w *walker) around(n *node, key []byte) (leaf *node, err error) {
	for len(n.pages) > 0 {
		i := n.index(key)
		if i > 0 {
			if err := w.edge(n, i-1, true); err != nil {
				return nil, err
			}
		}
		if i+1 < len(n.pages) {
			if err := w.edge(n, i+1, false); err != nil {
				return nil, err
			}
		}
		if n, err = w.child(n, i); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// edge checks a child of a branch and below it the pages at its left or right edge.
func (w *walker) edge(n *node, i int, right bool) error {
	for {
		child, err := w.child(n, i)
		if err != nil || len(child.pages) == 0 {
			return err
		}
		if n, i = child, 0; right {
			i = len(n.pages) - 1
		}
	}
}

// read returns the page with its overflow pages and marks them as seen.
func (w *walker) read(id uint64) ([]byte, error) {
	if id < 2 || id >= w.pages {
		return nil, w.bad(id, "outside the file")
	}
	page := make([]byte, pageSize)
	if err := w.readAt(page, id); err != nil {
		return nil, err
	}
	if got := order.Uint64(page); got != id {
		return nil, w.bad(id, "says that it is page %d", got)
	}
	more := uint64(order.Uint32(page[12:]))
	if id+more >= w.pages {
		return nil, w.bad(id, "ends outside the file")
	}
	for i := id; i <= id+more; i++ {
		if _, ok := w.seen[i]; ok {
			return nil, w.bad(i, "is used twice")
		}
		w.seen[i] = struct{}{}
	}
	if more == 0 {
		return page, nil
	}
	page = append(page, make([]byte, more*pageSize)...)
	return page, w.readAt(page[pageSize:], id+1)
}

func (w *walker) readAt(b []byte, id uint64) error {
	if _, err := w.file.ReadAt(b, int64(id*pageSize)); errors.Is(err, io.EOF) {
		return w.bad(id, "is cut off")
	} else if err != nil {
		return fmt.Errorf("read page %d: %w", id, err)
	}
	return nil
}

// elements returns how many elements a page has and where what they point to begins.
func (w *walker) elements(id uint64, page []byte) (count, data int, err error) {
	count = int(order.Uint16(page[10:]))
	if data = pageHeader + count*elementHeader; data > len(page) {
		return 0, 0, w.bad(id, "%d elements", count)
	}
	return count, data, nil
}

// branch checks a branch page, fills in what n holds of it, and returns how many bytes of the page are used.
func (w *walker) branch(id uint64, page []byte, n *node) (used int, err error) {
	count, used, err := w.elements(id, page)
	if err != nil {
		return 0, err
	}
	if count == 0 {
		return 0, w.bad(id, "no branches")
	}
	low := n.low
	for i := range count {
		at := pageHeader + i*elementHeader
		key, _, ok := element(page, at, used, order.Uint32(page[at:]), order.Uint32(page[at+4:]), 0)
		if !ok {
			return 0, w.bad(id, "branch %d lies outside it", i)
		}
		if !ordered(key, low, n.high) || i > 0 && bytes.Equal(key, low) {
			return 0, w.bad(id, "branch %d is out of order", i)
		}
		low = key
		used += len(key)
		n.keys = append(n.keys, key)
		n.pages = append(n.pages, order.Uint64(page[at+8:]))
	}
	return used, nil
}

// leaf does for a leaf page what branch does for a branch page. Small buckets that live inside it are checked with it.
func (w *walker) leaf(id uint64, page []byte, n *node) (used int, err error) {
	count, used, err := w.elements(id, page)
	if err != nil {
		return 0, err
	}
	low := n.low
	for i := range count {
		at := pageHeader + i*elementHeader
		key, value, ok := element(page, at, used, order.Uint32(page[at+4:]), order.Uint32(page[at+8:]), order.Uint32(page[at+12:]))
		if !ok {
			return 0, w.bad(id, "key %d lies outside it", i)
		}
		if !ordered(key, low, n.high) || i > 0 && bytes.Equal(key, low) {
			return 0, w.bad(id, "key %d is out of order", i)
		}
		low = key
		used += len(key) + len(value)
		switch flags := order.Uint32(page[at:]); {
		case flags&^leafBucket != 0:
			return 0, w.bad(id, "key %d has flags %#x", i, flags)
		case flags == 0:
		case len(value) < bucketHeader:
			return 0, w.bad(id, "bucket %q is cut off", key)
		case order.Uint64(value) != 0:
			n.buckets = append(n.buckets, order.Uint64(value))
		default:
			if err := w.inline(id, value[bucketHeader:]); err != nil {
				return 0, err
			}
		}
	}
	return used, nil
}

// inline checks a small bucket that lives inside its parent's page. It holds no buckets itself.
func (w *walker) inline(id uint64, page []byte) error {
	if len(page) < pageHeader || order.Uint64(page) != 0 || order.Uint16(page[8:]) != flagLeaf || order.Uint32(page[12:]) != 0 {
		return w.bad(id, "holds a bucket that is none")
	}
	for i := range int(order.Uint16(page[10:])) {
		if at := pageHeader + i*elementHeader; at+elementHeader <= len(page) && order.Uint32(page[at:]) != 0 {
			return w.bad(id, "holds a bucket within a bucket")
		}
	}
	used, err := w.leaf(id, page, &node{})
	if err == nil && used != len(page) {
		return w.bad(id, "holds a bucket of %d bytes in %d", used, len(page))
	}
	return err
}

// freelist checks the page that lists the free pages. This program does not write one, but bbolt begins a file with one that is empty.
func (w *walker) freelist(id uint64) error {
	if id == noFreelist {
		return nil
	}
	page, err := w.read(id)
	if err != nil {
		return err
	}
	at, count := pageHeader, uint64(order.Uint16(page[10:]))
	if count == math.MaxUint16 {
		at, count = at+8, order.Uint64(page[at:])
	}
	if order.Uint16(page[8:]) != flagFreelist || count > uint64(len(page)-at)/8 {
		return w.bad(id, "is no free list")
	}
	for i := range int(count) {
		free := order.Uint64(page[at+8*i:])
		if _, ok := w.seen[free]; ok || free < 2 || free >= w.pages {
			return w.bad(id, "page %d is not free", free)
		}
		w.seen[free] = struct{}{}
	}
	return nil
}

// element returns the key and the value that an element at offset `at` points to. pos is relative to the element; bbolt writes one after
// the other without a gap, so that it has to say `begin`. A key is never empty.
func element(page []byte, at, begin int, pos, ksize, vsize uint32) (key, value []byte, ok bool) {
	start := uint64(at) + uint64(pos)
	middle := start + uint64(ksize)
	end := middle + uint64(vsize)
	if start != uint64(begin) || ksize == 0 || end > uint64(len(page)) {
		return nil, nil, false
	}
	return page[start:middle], page[middle:end], true
}

func ordered(key, low, high []byte) bool {
	return bytes.Compare(key, low) >= 0 && (high == nil || bytes.Compare(key, high) < 0)
}
