package messaging

import "time"

// ages tells since when messages of a stream have been in this process. It
// keeps the first offset of each second in which some came, and of longer times
// when there are many of them: so a message may seem older than it is, by as
// much as a small part of the time for which the oldest one has been here.
type ages struct{ marks []mark }

// mark says that what lies from an offset on came at that time, or later.
type mark struct {
	from int64
	at   time.Time
}

const (
	ageStep  = time.Second
	marksMax = 64
)

// came takes note that messages came, from an offset on. What lies below oldest
// is settled.
func (a *ages) came(from, oldest int64, at time.Time) {
	if n := len(a.marks); n > 0 && (from <= a.marks[n-1].from || at.Sub(a.marks[n-1].at) < ageStep) {
		return
	}
	settled := 0
	for settled < len(a.marks)-1 && a.marks[settled+1].from <= oldest {
		settled++
	}
	n := copy(a.marks, a.marks[settled:])
	if n == marksMax {
		n /= 2
		for i := range n {
			a.marks[i] = a.marks[2*i]
		}
	}
	a.marks = append(a.marks[:n], mark{from, at})
}

// of returns when the message at an offset came; zero if that is not known.
func (a *ages) of(offset int64) (at time.Time) {
	for _, m := range a.marks {
		if m.from > offset {
			break
		}
		at = m.at
	}
	return at
}
