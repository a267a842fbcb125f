package config

// Names are the settings that the programs of pawl.Main and pawl.Work have. A
// file or an environment that is shared holds
// settings of several of them: a command passes over those that are not its
// own, and refuses what none of them has.
var Names = []string{
	"accept-state-loss", "admin", "admin-token", "admin-token-file", "advertise", "allow-old-broker", "application",
	"backoff-max", "backoff-min", "breaker-cooldown", "breaker-failures", "brokers",
	"commit-interval", "commit-pause", "concurrency", "config", "consumer", "context",
	"dead-letters", "dead-letters-brokers", "dead-letters-sasl-mechanism", "dead-letters-sasl-password", "dead-letters-sasl-password-file",
	"dead-letters-sasl-scope", "dead-letters-sasl-token", "dead-letters-sasl-token-file", "dead-letters-sasl-token-url", "dead-letters-sasl-username",
	"dead-letters-tls", "dead-letters-tls-ca", "dead-letters-tls-cert", "dead-letters-tls-key", "dead-letters-tls-server-name",
	"drain", "fence-timeout", "flush-bytes", "flush-interval", "handler-timeout", "heartbeat-interval",
	"insecure", "instance", "listen", "log-format", "log-level",
	"max-bytes", "max-crashes", "max-span", "max-unsettled", "memory",
	"on-failure", "on-offset-out-of-range", "order", "partitions", "rate-limit", "replication", "restore-stall",
	"retry-attempts", "retry-backoff-max", "retry-backoff-min", "retry-delays",
	"sasl-mechanism", "sasl-password", "sasl-password-file", "sasl-scope", "sasl-token", "sasl-token-file", "sasl-token-url", "sasl-username",
	"session-timeout", "start", "start-timeout", "state-dir", "stop", "stuck-after",
	"tls", "tls-ca", "tls-cert", "tls-key", "tls-server-name", "topics-interval",
	"transaction-bytes", "transaction-messages", "transaction-timeout", "write-timeout",
}
