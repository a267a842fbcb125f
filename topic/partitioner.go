package topic

// PartitionFor returns the partition, of n, that every Kafka client chooses
// for a message with the given key: the murmur2 hash of the key's bytes,
// without its sign bit, modulo n. An empty key is hashed like any other; a
// null key is not, and a caller spreads such messages as it likes.
func PartitionFor(key []byte, n int) int32 {
	return int32(murmur2(key)&0x7fffffff) % int32(n)
}

// murmur2 is the 32-bit MurmurHash2 with the seed that Kafka's Java client
// uses.
func murmur2(key []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := seed ^ uint32(len(key))
	for len(key) >= 4 {
		k := uint32(key[0]) | uint32(key[1])<<8 | uint32(key[2])<<16 | uint32(key[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h *= m
		h ^= k
		key = key[4:]
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(key[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}
