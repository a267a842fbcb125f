package io.pawlstream.bench;

import java.io.FileInputStream;
import java.io.IOException;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * One workload on Kafka Streams, for bench/peers, which starts it, watches it from outside, and ends
 * it by closing its standard input.
 *
 * <pre>Peer WORKLOAD INPUT OUTPUT PROPERTIES-FILE</pre>
 *
 * All settings of Kafka Streams come from the file, so that the driver alone decides them. Keys and
 * values are bytes, which is the cheapest form that they have here.
 */
public final class Peer {
    public static void main(String[] args) throws IOException, InterruptedException {
        if (args.length != 4) {
            throw new IllegalArgumentException("want WORKLOAD INPUT OUTPUT PROPERTIES-FILE");
        }
        Properties settings = new Properties();
        try (FileInputStream in = new FileInputStream(args[3])) {
            settings.load(in);
        }
        KafkaStreams streams = new KafkaStreams(topology(args[0], args[1], args[2]), settings);
        streams.setUncaughtExceptionHandler(e -> {
            // The driver waits for progress that will not come: end the process, and it knows.
            e.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();

        CountDownLatch ended = new CountDownLatch(1);
        Thread watch = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    // Nothing is said on it; only its end counts.
                }
            } catch (IOException e) {
                e.printStackTrace();
            }
            ended.countDown();
        }, "stdin");
        watch.setDaemon(true);
        watch.start();
        ended.await();
        streams.close();
    }

    private static Topology topology(String workload, String input, String output) {
        Serde<byte[]> bytes = Serdes.ByteArray();
        StreamsBuilder builder = new StreamsBuilder();
        switch (workload) {
            case "count":
                builder.stream(input, Consumed.with(bytes, bytes))
                    .groupByKey(Grouped.with(bytes, bytes))
                    .count(Materialized.with(bytes, Serdes.Long()))
                    .toStream()
                    .to(output, Produced.with(bytes, Serdes.Long()));
                break;
            case "map":
                builder.stream(input, Consumed.with(bytes, bytes))
                    .mapValues(Peer::invert)
                    .to(output, Produced.with(bytes, bytes));
                break;
            default:
                throw new IllegalArgumentException("no workload " + workload);
        }
        return builder.build();
    }

    /** The map: inverts all bytes of a value but the eight of its number. */
    private static byte[] invert(byte[] value) {
        byte[] inverted = value.clone();
        for (int i = Long.BYTES; i < inverted.length; i++) {
            inverted[i] ^= (byte) 0xff;
        }
        return inverted;
    }
}
