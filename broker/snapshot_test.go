package broker

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What a snapshot looks like in JSON stays as it is: names in the style of the
// other pages of the admin API, and no durations, which would be nanoseconds.
func TestSnapshotJSON(t *testing.T) {
	style := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	var look func(typ reflect.Type)
	look = func(typ reflect.Type) {
		switch typ.Kind() {
		case reflect.Slice, reflect.Pointer, reflect.Map:
			look(typ.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		for i := range typ.NumField() {
			f := typ.Field(i)
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !style.MatchString(name) {
				t.Errorf("%s.%s is called %q", typ.Name(), f.Name, name)
			}
			if f.Type == reflect.TypeFor[time.Duration]() {
				t.Errorf("%s.%s is a number of nanoseconds", typ.Name(), f.Name)
			}
			look(f.Type)
		}
	}
	look(reflect.TypeFor[Snapshot]())

	k := start(t, quiet())
	p := k.rawProducer("x")
	k.create("t", 1)
	if _, err := p.produce("t", 0, "v"); err != nil {
		t.Fatal(err)
	}
	x := k.Snapshot().Transactions[0]
	if x.TimeoutSeconds != 60 || x.AgeSeconds < 0 || x.AgeSeconds > 60 {
		t.Errorf("a transaction of 60 s that was just begun has timeout %v and age %v", x.TimeoutSeconds, x.AgeSeconds)
	}
}
