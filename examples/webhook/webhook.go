// Package webhook delivers events to the web services of those who asked for
// them. Such a service is slow at times, refuses at times, and is gone for an
// hour at times; none of that may lose an event, or hold up those of others.
//
// A message of the topic webhooks is an [Event]; its key is whose it is, so
// that each customer's events are delivered in order and no customer waits for
// another's service. The program is in cmd:
//
//	go run ./examples/webhook/cmd --listen 127.0.0.1:9092
package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pawlstream/pawl/messaging"
)

// Topic is what is worked on.
const Topic = "webhooks"

// Event is a message.
type Event struct {
	URL  string          `json:"url"`  // of the service
	Body json.RawMessage `json:"body"` // what it is sent
}

const (
	answerTime = 30 * time.Second // for a whole answer
	answerMax  = 64 << 10         // bytes of it that are read
	delayMax   = time.Hour        // that a service is granted
)

// Handler returns what delivers events by the client.
func Handler(client *http.Client) messaging.Handler {
	return messaging.JSON(func(ctx context.Context, e Event, d messaging.Delivery) error {
		to, err := url.Parse(e.URL)
		if err != nil || to.Host == "" || to.Scheme != "http" && to.Scheme != "https" {
			return messaging.DeadLetter(fmt.Errorf("%q is no address of a web service", e.URL))
		}
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, bytes.NewReader(e.Body))
		if err != nil {
			return messaging.DeadLetter(err)
		}
		req.Header.Set("Content-Type", "application/json")
		// An event may be sent again though it has arrived: when this process
		// ends before that is committed, or the answer is lost. By this key the
		// service can tell.
		req.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d-%d", d.Topic(), d.Partition(), d.Offset()))
		resp, err := client.Do(req)
		if err != nil {
			return err // tried again
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, answerMax)); err != nil {
			return fmt.Errorf("read the answer of %s: %w", to.Host, err)
		}
		return judge(resp)
	})
}

// judge says what becomes of an event, by the answer.
func judge(resp *http.Response) error {
	err := fmt.Errorf("%s answers %s", resp.Request.URL.Host, resp.Status)
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		if seconds, convErr := strconv.Atoi(resp.Header.Get("Retry-After")); convErr == nil && seconds > 0 {
			return messaging.RetryAfter(min(time.Duration(min(seconds, 1<<30))*time.Second, delayMax), err)
		}
		return err
	case code >= 500 || code == http.StatusRequestTimeout:
		return err
	}
	return messaging.DeadLetter(err) // it won't be liked better another time
}
