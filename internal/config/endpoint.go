package config

import (
	"errors"
	"net/url"
	"strings"
)

// Endpoint is the URL of a token endpoint. One that holds a user is refused
// here, before anything keeps it: a client's secret is a setting of its own,
// which is shown nowhere, and a URL is shown. Empty is none.
func Endpoint(p *string) Value {
	return Parsed(p, "URL", func(s string) (string, error) {
		if s == "" {
			return "", nil
		}
		u, err := url.Parse(s)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
			return "", errors.New("want https://HOST/PATH")
		case u.User != nil:
			return "", errors.New("it holds a user: a client's ID and secret are the SASL user name and password")
		}
		return s, nil
	})
}

// redacted is a setting's text as it may be shown: without a password that
// somebody has written into a URL. Of what is no URL, and may be meant as one,
// all goes that stands where a user does.
func redacted(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 || !strings.Contains(text[:at], ":") {
		return text
	}
	switch u, err := url.Parse(text); {
	case err == nil && u.User != nil:
		return u.Redacted()
	case err == nil && u.Host != "":
		return text
	}
	return hidden + text[at:]
}
