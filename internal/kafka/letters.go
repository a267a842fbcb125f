package kafka

import (
	"fmt"
	"strconv"
	"time"
)

// LettersKept is for how long a topic of dead letters is to keep them at least,
// so that somebody sees them, after a weekend too. It is Kafka's own default.
const LettersKept = 7 * 24 * time.Hour

// Lapse is a setting of a topic by which dead letters vanish that nobody has
// looked at.
type Lapse struct {
	Setting, Value string
	Want           string // a value that mends it
	What           string // what happens, in words
}

// LetterLapses returns what is wrong with the settings of a topic of dead
// letters. One that isn't said is not looked at.
func LetterLapses(settings map[string]string) (all []Lapse) {
	if ms, err := strconv.ParseInt(settings["retention.ms"], 10, 64); err == nil && ms >= 0 && ms < LettersKept.Milliseconds() {
		all = append(all, Lapse{"retention.ms", settings["retention.ms"], "2592000000",
			fmt.Sprintf("dead letters vanish after %v, whether anybody has looked at them or not", time.Duration(ms)*time.Millisecond)})
	}
	if n, err := strconv.ParseInt(settings["retention.bytes"], 10, 64); err == nil && n >= 0 {
		all = append(all, Lapse{"retention.bytes", settings["retention.bytes"], "-1",
			fmt.Sprintf("the oldest dead letters vanish once a partition holds more than %d bytes, whether anybody has looked at them or not", n)})
	}
	return all
}
