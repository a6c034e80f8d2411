// SPDX-License-Identifier: Apache-2.0

package store

import (
	"io"

	"go.etcd.io/bbolt"
)

// transaction is a bbolt transaction in which bbolt sees no page that was not checked first, in this transaction: Open has checked all, but
// a page can go bad under an open log. Only what an operation may touch is read, once per transaction. A page that fails ends the
// transaction with a pageError; guard returns it. What is left is the moment between the check and bbolt's own look.
type transaction struct {
	bolt *bbolt.Tx
	root *bucket
}

func newTransaction(tx *bbolt.Tx, f io.ReaderAt) *transaction {
	pages := newWalker(f, uint64(tx.Size()/pageSize))
	return &transaction{bolt: tx, root: newBucket(tx.Cursor().Bucket(), pages)}
}

// Bucket returns a bucket of the file, nil if there is none.
func (t *transaction) Bucket(name []byte) *bucket { return t.root.Bucket(name) }

// CreateBucketIfNotExists returns a bucket of the file.
func (t *transaction) CreateBucketIfNotExists(name []byte) (*bucket, error) {
	return t.root.CreateBucketIfNotExists(name)
}

// pageError is a page that bbolt must not see. It is a kind of corruption also if the disk could not read the page.
type pageError struct{ err error }

func (e *pageError) Error() string        { return e.err.Error() }
func (e *pageError) Unwrap() error        { return e.err }
func (e *pageError) Is(target error) bool { return target == ErrCorrupt }

// bucket is a bbolt bucket within a transaction.
type bucket struct {
	bolt    *bbolt.Bucket
	pages   *walker
	top     *node // its root page; nil: not checked yet
	buckets map[string]*bucket
}

func newBucket(b *bbolt.Bucket, pages *walker) *bucket {
	return &bucket{bolt: b, pages: pages, buckets: map[string]*bucket{}}
}

// check takes the pages that walk leads to and returns the leaf where key belongs.
func (b *bucket) check(walk func(*walker, *node, []byte) (*node, error), key []byte) *node {
	root := uint64(b.bolt.Root())
	if root == 0 { // it is new, or inside its parent's page and checked with it
		return &node{}
	}
	var err error
	if b.top == nil {
		b.top, err = b.pages.open(root, nil, nil)
	}
	var leaf *node
	if err == nil {
		leaf, err = walk(b.pages, b.top, key)
	}
	if err != nil {
		panic(&pageError{err})
	}
	return leaf
}

// The methods below are those of bbolt.Bucket.

func (b *bucket) Bucket(name []byte) *bucket {
	if b.buckets[string(name)] == nil {
		b.check((*walker).path, name)
		child := b.bolt.Bucket(name)
		if child == nil {
			return nil
		}
		b.buckets[string(name)] = newBucket(child, b.pages)
	}
	return b.buckets[string(name)]
}

func (b *bucket) CreateBucketIfNotExists(name []byte) (*bucket, error) {
	b.check((*walker).path, name)
	if _, err := b.bolt.CreateBucketIfNotExists(name); err != nil {
		return nil, err
	}
	return b.Bucket(name), nil
}

func (b *bucket) Get(key []byte) []byte {
	b.check((*walker).path, key)
	return b.bolt.Get(key)
}

func (b *bucket) Put(key, value []byte) error {
	b.check((*walker).path, key)
	return b.bolt.Put(key, value)
}

func (b *bucket) Delete(key []byte) error {
	b.check((*walker).around, key)
	return b.bolt.Delete(key)
}

func (b *bucket) Sequence() uint64 { return b.bolt.Sequence() }

func (b *bucket) SetSequence(n uint64) error {
	b.check((*walker).path, nil)
	return b.bolt.SetSequence(n)
}

func (b *bucket) NextSequence() (uint64, error) {
	b.check((*walker).path, nil)
	return b.bolt.NextSequence()
}

func (b *bucket) ForEach(fn func(k, v []byte) error) error {
	c := b.Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if err := fn(k, v); err != nil {
			return err
		}
	}
	return nil
}

// fill sets how full pages become that are split.
func (b *bucket) fill(share float64) { b.bolt.FillPercent = share }

func (b *bucket) Cursor() *keyCursor { return &keyCursor{bucket: b, bolt: b.bolt.Cursor()} }

// keyCursor is a bbolt cursor. Each of its steps stays on the leaf around which all is checked or goes to the next one that has keys; Delete
// has checked the neighbours of every leaf that it may have emptied.
type keyCursor struct {
	bucket *bucket
	bolt   *bbolt.Cursor
	leaf   *node
	key    []byte // where it is
}

func (c *keyCursor) First() (key, value []byte) {
	c.around(nil)
	return c.at(c.bolt.First())
}

func (c *keyCursor) Seek(key []byte) (k, v []byte) {
	c.around(key)
	return c.at(c.bolt.Seek(key))
}

func (c *keyCursor) Next() (key, value []byte) {
	if !ordered(c.key, c.leaf.low, c.leaf.high) {
		c.around(c.key)
	}
	return c.at(c.bolt.Next())
}

// Before moves to the last key below key.
func (c *keyCursor) Before(key []byte) (k, v []byte) {
	c.around(key)
	if k, _ := c.bolt.Seek(key); k == nil {
		return c.at(c.bolt.Last())
	}
	return c.at(c.bolt.Prev())
}

func (c *keyCursor) around(key []byte) { c.leaf = c.bucket.check((*walker).around, key) }

func (c *keyCursor) at(key, value []byte) (k, v []byte) {
	c.key = key
	return key, value
}
