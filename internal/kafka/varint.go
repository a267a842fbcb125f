package kafka

// varint reads a number whose sign is in its lowest bit, and returns where it
// ends. From what holds no number there, or from badPlace, it returns 0 and
// badPlace.
func varint(b []byte, at int) (int64, int) {
	if uint(at) < uint(len(b)) && b[at] < 0x80 {
		return zigzag(uint64(b[at])), at + 1
	}
	return longVarint(b, at)
}

func zigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

// badPlace is where nothing is. It stays so whatever is read there or passed.
const badPlace = -1

// longVarint is varint for what takes several bytes. It stands alone so that
// varint is small enough to have no call.
//
//go:noinline
func longVarint(b []byte, at int) (int64, int) {
	if at < 0 {
		return 0, badPlace
	}
	var u uint64
	for shift := 0; shift < 70 && at < len(b); shift += 7 {
		x := b[at]
		at++
		u |= uint64(x&0x7f) << shift
		if x < 0x80 {
			return zigzag(u), at
		}
	}
	return 0, badPlace
}

// skip returns the place after n bytes; after none for a number below 0, which
// is that of null.
func skip(b []byte, at int, n int64) int {
	switch {
	case n <= 0 || at < 0:
		return at
	case n > int64(len(b)-at):
		return badPlace
	}
	return at + int(n)
}

// blob reads bytes with their length before them, and returns where they end.
func blob(b []byte, at int) ([]byte, int) {
	n, from := varint(b, at)
	to := skip(b, from, n)
	if n < 0 || to < 0 {
		return nil, to
	}
	return b[from:to:to], to
}
