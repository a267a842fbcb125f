package broker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pawlstream/pawl/cluster"
)

// tools runs programs of others against a broker.
type tools struct {
	*kit
	lib string // of Kafka's jars
}

// run runs a program, and returns what it prints.
func (t tools) run(stdin string, name string, args ...string) string {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.CommandContext(t.ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %q: %v\n%s\n%s", name, args, err, out.String(), errs.String())
	}
	return out.String()
}

// java runs one of Kafka's own tools.
func (t tools) java(stdin, class string, args ...string) string {
	t.Helper()
	return t.run(stdin, "java", append([]string{"-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", t.lib + "/*", class, "--bootstrap-server", t.Addr()}, args...)...)
}

func (t tools) want(what, got string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q is not in\n%s", what, want, got)
		}
	}
}

// sorted returns the lines of what a consumer prints, of all partitions.
func sorted(text string) []string {
	lines := strings.Fields(text)
	slices.Sort(lines)
	return lines
}

const (
	topicCommand  = "org.apache.kafka.tools.TopicCommand"
	groupCommand  = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
	configCommand = "org.apache.kafka.tools.ConfigCommand"
	producer      = "org.apache.kafka.tools.ConsoleProducer"
	consumer      = "org.apache.kafka.tools.consumer.ConsoleConsumer"
)

// Kafka's own command-line tools, and with them its Java client, work on the
// broker: topics, messages with every codec, groups, offsets, settings,
// transactions.
func TestJavaTools(t *testing.T) {
	lib := os.Getenv("PAWL_TEST_KAFKA_LIB")
	if lib == "" {
		t.Skip("PAWL_TEST_KAFKA_LIB names no jars of Kafka's; scripts/kafka run sets it") // Java's tools come with the Kafka that make kafka-test starts
	}
	j := tools{start(t, listening()), lib}
	j.java("", topicCommand, "--create", "--topic", "words", "--partitions", "2", "--config", "retention.ms=86400000")
	j.want("describe", j.java("", topicCommand, "--describe", "--topic", "words"), "PartitionCount: 2", "retention.ms=86400000")
	j.want("list", j.java("", topicCommand, "--list"), "words\n")

	var want []string
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		j.java(codec+"-1\n"+codec+"-2\n", producer, "--topic", "words", "--compression-codec", codec)
		want = append(want, codec+"-1", codec+"-2")
	}
	slices.Sort(want)
	got := sorted(j.java("", consumer, "--topic", "words", "--from-beginning", "--max-messages", fmt.Sprint(len(want)), "--group", "readers", "--isolation-level", "read_committed"))
	if !slices.Equal(got, want) {
		t.Errorf("the Java consumer read %q, want %q", got, want)
	}

	j.want("groups", j.java("", groupCommand, "--list"), "readers")
	j.want("a group", j.java("", groupCommand, "--describe", "--group", "readers"), "words", "LAG")
	j.want("reset", j.java("", groupCommand, "--reset-offsets", "--group", "readers", "--topic", "words", "--to-earliest", "--execute"), "words")
	again := sorted(j.java("", consumer, "--topic", "words", "--max-messages", fmt.Sprint(len(want)), "--group", "readers"))
	if !slices.Equal(again, want) {
		t.Errorf("after a reset the group read %q, want %q", again, want)
	}

	j.java("", configCommand, "--alter", "--entity-type", "topics", "--entity-name", "words", "--add-config", "max.message.bytes=2000000")
	j.want("settings", j.java("", configCommand, "--describe", "--entity-type", "topics", "--entity-name", "words"), "max.message.bytes=2000000")
	j.java("", topicCommand, "--alter", "--topic", "words", "--partitions", "3")
	j.want("offsets", j.java("", "org.apache.kafka.tools.GetOffsetShell", "--topic", "words"), "words:2:0")

	j.java("", "org.apache.kafka.tools.ProducerPerformance", "--topic", "words", "--num-records", "2000", "--record-size", "100", "--throughput", "-1", "--transactional-id", "perf", "--transaction-duration-ms", "50")
	if recs := len(j.records("words", 0, true)) + len(j.records("words", 1, true)) + len(j.records("words", 2, true)); recs != 2000+len(want) {
		t.Errorf("%d records are committed, want %d", recs, 2000+len(want))
	}
	j.want("transactions", j.java("", "org.apache.kafka.tools.TransactionsCommand", "list"), "perf", "CompleteCommit")
	j.java("", topicCommand, "--delete", "--topic", "words")
	if got := j.java("", topicCommand, "--list"); strings.Contains(got, "words") {
		t.Errorf("the topic is there after it was deleted: %s", got)
	}
}

// The Java client proves that it knows a password by SCRAM.
func TestJavaScram(t *testing.T) {
	lib := os.Getenv("PAWL_TEST_KAFKA_LIB")
	if lib == "" {
		t.Skip("PAWL_TEST_KAFKA_LIB names no jars of Kafka's; scripts/kafka run sets it") // Java's tools come with the Kafka that make kafka-test starts
	}
	j := tools{start(t, guarded()), lib}
	j.create("words", 1)
	for _, m := range []string{cluster.ScramSHA256, cluster.ScramSHA512} {
		file := filepath.Join(t.TempDir(), "client.properties")
		text := "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=" + m +
			"\nsasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username=\"ann\" password=\"secret\";\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		j.want(m, j.java("", topicCommand, "--list", "--command-config", file), "words\n")
	}
}

// librdkafka proves that it knows a password by SCRAM.
func TestKcatScram(t *testing.T) {
	if _, err := exec.LookPath("kcat"); err != nil {
		t.Skip("kcat is not installed") // .ci/run installs it where it can; the same is tested with the other clients
	}
	j := tools{kit: start(t, guarded())}
	j.create("words", 2)
	for _, m := range []string{cluster.ScramSHA256, cluster.ScramSHA512} {
		j.want(m, j.run("", "kcat", "-q", "-b", j.Addr(), "-L", "-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanisms="+m,
			"-X", "sasl.username=ann", "-X", "sasl.password=secret"), `topic "words" with 2 partitions`)
	}
}

// guarded is a broker that listens and asks for a password.
func guarded() Config {
	c := listening()
	c.Users = []User{{"ann", "secret"}}
	return c
}

// kcat, and with it librdkafka, works on the broker.
func TestKcat(t *testing.T) {
	if _, err := exec.LookPath("kcat"); err != nil {
		t.Skip("kcat is not installed") // .ci/run installs it where it can; the same is tested with the other clients
	}
	j := tools{kit: start(t, listening())}
	kcat := func(stdin string, args ...string) string {
		t.Helper()
		return j.run(stdin, "kcat", append([]string{"-q", "-b", j.Addr()}, args...)...)
	}
	j.create("words", 2)
	j.want("metadata", kcat("", "-L"), `topic "words" with 2 partitions`)
	var want []string
	for _, codec := range []string{"none", "gzip", "snappy", "lz4", "zstd"} {
		kcat(codec+"-1\n"+codec+"-2\n", "-P", "-t", "words", "-z", codec, "-X", "enable.idempotence=true")
		want = append(want, codec+"-1", codec+"-2")
	}
	slices.Sort(want)
	if got := sorted(kcat("", "-C", "-t", "words", "-o", "beginning", "-e")); !slices.Equal(got, want) {
		t.Errorf("kcat read %q, want %q", got, want)
	}
	if got := sorted(kcat("", "-G", "readers", "-X", "auto.offset.reset=earliest", "-c", fmt.Sprint(len(want)), "words")); !slices.Equal(got, want) {
		t.Errorf("kcat's group read %q, want %q", got, want)
	}
	j.want("by time", kcat("", "-Q", "-t", "words:0:-2"), "offset 0")
}
