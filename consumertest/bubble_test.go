package consumertest

import (
	"testing"
	"testing/synctest"
)

func TestInBubble(t *testing.T) {
	if inBubble() {
		t.Error("in a bubble, outside of one")
	}
	synctest.Test(t, func(t *testing.T) {
		if !inBubble() {
			t.Error("in no bubble, inside of one")
		}
		there := make(chan bool)
		go func() { there <- inBubble() }()
		if !<-there {
			t.Error("in no bubble, on another goroutine inside of one")
		}
	})
}
