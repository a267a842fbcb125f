// Package changelog is the log of a shard's state: what is in its records,
// what a position in it is, and how the state is restored from it.
//
// A changelog topic has one partition for each shard and is compacted. Every
// record is in a transaction of the shard that owns the partition. There are
// three kinds, told apart by the first byte of the key:
//
//	0x00 "start"    a start record: who owns the shard from here on
//	0x00 "offsets"  an offsets record: up to where each input partition is
//	                consumed, in the state that the records before it make
//	0x01 to 0x1f    a change of state: the key and value are those of the
//	                store, and a null value means that the key was deleted
//
// Keys that begin with another byte, and null keys, are nobody's that owns the
// topic. They are passed over, which is logged.
//
// The values of the first two are JSON objects, so that any tool that shows a
// topic shows them. Each names its format in the member "v". A reader refuses
// a format it does not know and passes over members it does not know.
//
// Each transaction holds its changes and one offsets record, and so the last
// offsets record always says where to go on from, whatever was compacted.
package changelog
