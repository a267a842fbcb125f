// Package topic describes topics and the messages in them: what a topic is
// called, how its messages become bytes and bytes become messages, which key a
// message has, and so which partition it goes to.
//
// A topic is a variable of the program, made once:
//
//	var totals = topic.JSON("totals", topic.KeyedBy(func(t Total) string { return t.Word }))
//
// The types of messages are plain Go types without any methods to implement.
package topic
