// A consumer of a zk-group-coordinator group in one file of Java 17, written from zk_paths.md alone. It passes
// `zk-coordinator conformance --without static-members,wildcards`; docs/conformance.md says how to run it.

import com.fasterxml.jackson.annotation.JsonInclude;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.json.JsonMapper;
import java.io.*;
import java.util.*;
import java.util.concurrent.CompletableFuture;
import java.util.function.Predicate;
import java.util.stream.*;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.ipc.ArrowFileReader;
import org.apache.zookeeper.*;
import org.apache.zookeeper.data.Stat;

public class ZkConsumer {
    static final JsonMapper JSON = JsonMapper.builder().disable(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES,
        DeserializationFeature.ACCEPT_FLOAT_AS_INT).disable(MapperFeature.ALLOW_COERCION_OF_SCALARS).build();
    static final int STEP = 190, MOST_BYTES = 512_000, MOST_PARTITIONS = 10_000, MOST_RECORDS = 500;
    static final TypeReference<Map<String, String>> MAP = new TypeReference<>() {};
    static final Set<String> FOR_GOOD = Set.of("FencedInstanceId", "InconsistentGroupProtocol", "GroupMaxSizeReached");

    record Partition(String topic, int partition) {}
    record Position(String topic, int partition, long offset) {}
    record Batch(String topic, int partition, int count, long minOffset, long maxOffset) {}

    /** The data of channel/[consumer]. */
    static class Channel {
        public int version = 1;
        public String incarnation = "", command = "", ended;
        public long epoch, generation;
        public Map<String, Map<Integer, Long>> running = new TreeMap<>();
        public Map<String, String> topics = new TreeMap<>();
        @JsonInclude(JsonInclude.Include.NON_EMPTY) public Map<String, String> refused = new TreeMap<>();
        @JsonInclude(JsonInclude.Include.NON_DEFAULT) public long touched;
        @JsonInclude(JsonInclude.Include.NON_NULL) public String error;

        Channel copy() { return JSON.convertValue(this, Channel.class); }
        Long offset(Partition part) { return running.getOrDefault(part.topic, Map.of()).get(part.partition); }
        void set(Partition part, Long offset) { running.computeIfAbsent(part.topic, t -> new TreeMap<>()).put(part.partition, offset); }
        List<Partition> partitions() {
            return running.entrySet().stream().flatMap(t -> t.getValue().keySet().stream().map(n -> new Partition(t.getKey(), n))).toList();
        }
        void drop(Collection<Partition> parts) {
            parts.forEach(part -> running.get(part.topic).remove(part.partition));
            running.values().removeIf(Map::isEmpty);
            topics.keySet().retainAll(running.keySet());
        }
    }

    /** A command, with its name; `started` has the thread of each partition. */
    static class Command {
        public String option, incarnation;
        public Long epoch, generation;
        public Map<String, Map<String, String>> ownershipMap = Map.of();
        public Map<String, String> partitions = Map.of(), topics = Map.of();
        String name;
        final Map<Partition, String> started = new LinkedHashMap<>();
        Set<Partition> stopped;
    }

    /** This incarnation has ended; `isForGood` when the process must not come back. */
    static class Over extends Exception {
        final boolean isForGood;
        Over(String why, boolean isForGood) { super(why); this.isForGood = isForGood; }
    }

    /** A multi was refused by another znode than the channel, whose path is the message: read again. */
    static class Refused extends Exception { Refused(String path) { super(path); } }

    final Map<String, String> options = new HashMap<>();
    final String consumer, root, path;
    final Set<String> own = new HashSet<>();  // this process's incarnations
    final Set<Partition> held = new LinkedHashSet<>();  // assigned, by the lines printed
    final Map<Partition, Long> ends = new HashMap<>(), notBefore = new HashMap<>();
    final RootAllocator allocator = new RootAllocator();
    final long pollMs;
    volatile boolean isStopping, isWoken;
    ZooKeeper zk;
    Channel channel;
    int version;  // of the channel's data: the fence
    long timeoutMs, lastRenewal, lastCommit, leaseUntil, answered;
    long[] sent;  // when the syncs of the last three renewals that count were sent, the newest first

    ZkConsumer(String[] args) {
        for (int i = 0; i + 1 < args.length; i++) if (args[i].startsWith("--")) options.put(args[i], args[i + 1]);
        consumer = options.get("--consumer");
        root = "/consumers/groups/" + options.get("--group");
        path = root + "/channel/" + consumer;
        pollMs = Long.parseLong(options.get("--max-poll-interval-ms"));
    }

    public static void main(String[] args) throws Exception {
        ZkConsumer self = new ZkConsumer(args);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {  // SIGTERM: leave, then end with 0
            self.isStopping = true;
            try { main.join(); } catch (InterruptedException e) { Runtime.getRuntime().halt(1); }
        }));
        Runtime.getRuntime().halt(self.run());
    }

    int run() throws Exception {
        print("startup_complete", Map.of());
        boolean isOver = false;
        while (!isStopping && !isOver) {
            try {
                open();
                register();
                while (!isStopping) turn();
                leave();
            } catch (Over | KeeperException.SessionExpiredException | KeeperException.ConnectionLossException e) {
                System.err.println("over: " + e.getMessage());
                isOver = e instanceof Over over && over.isForGood;
            }
            gone("partitions_lost", List.copyOf(held));
            zk.close();
            if (!isStopping) Thread.sleep(500);
        }
        print("shutdown_complete", Map.of());
        return isOver ? 1 : 0;
    }

    /** A session. Its opening stands for the renewals before the first. */
    void open() throws Exception {
        long begun = now();
        zk = new ZooKeeper(options.get("--zk"), Integer.parseInt(options.get("--session-timeout-ms")), event -> isWoken = true);
        while (zk.getState() != ZooKeeper.States.CONNECTED && !isStopping) Thread.sleep(10);
        timeoutMs = zk.getSessionTimeout();
        sent = new long[] {begun, begun, begun};
        answered = leaseUntil = lastRenewal = 0;
    }

    // ---- Life of a consumer, 1: register

    void register() throws Exception {
        for (int tries = 0; ; tries++)
            try {
                ensure("/consumers", "/consumers/groups", root);
                for (String each : "ids seats channel owners offsets segments queries history pools".split(" ")) ensure(root + "/" + each);
                ensure(path);
                if (isRegistered()) return;
            } catch (KeeperException.BadVersionException | KeeperException.NodeExistsException | KeeperException.NoNodeException e) {
                if (tries > 50) throw e;
            }
    }

    /** The next multi of the registration; whether it was the last. */
    boolean isRegistered() throws Exception {
        List<String> commands = zk.getChildren(path, false);
        Stat stat = new Stat();
        Channel before = new Channel();
        try { before = read(zk.getData(path, false, stat), Channel.class); } catch (IOException unreadable) { /* as one without data */ }
        boolean isOthers = !own.isEmpty() && !before.incarnation.isEmpty() && !own.contains(before.incarnation);
        if (isOthers) throw new Over("another process has the name", true);
        before.drop(select(before.partitions(), counting(before.incarnation).negate()));
        List<Partition> some = before.partitions().stream().limit(STEP).toList();
        boolean isLast = some.size() == before.partitions().size();
        if (!isLast && before.ended == null) {  // the fence first, then the partitions in steps
            before.ended = consumer + " is being taken over";
            before.error = "UnknownMemberId";
            some = List.of();
        }
        List<Op> ops = release(before, some);
        before.drop(some);
        channel = new Channel();
        channel.incarnation = UUID.randomUUID().toString().replace("-", "");
        ops.add(0, Op.setData(path, JSON.writeValueAsBytes(isLast ? channel : before), stat.getVersion()));
        if (isLast) {
            own.add(channel.incarnation);
            commands.forEach(name -> ops.add(Op.delete(path + "/" + name, -1)));
            for (String node : List.of(root + "/ids/" + consumer, root + "/seats/" + consumer))
                if (zk.exists(node, false) != null) ops.add(Op.delete(node, -1));
            Map<String, Integer> topics = Stream.of(options.get("--topics").split(",")).map(each -> each.split(":"))
                .collect(Collectors.toMap(each -> each[0], each -> each.length > 1 ? Integer.parseInt(each[1]) : 1));
            ops.add(create(root + "/ids/" + consumer, Map.of("version", 1, "subscription", topics, "pattern", "static",
                "incarnation", channel.incarnation, "host", "java", "protocols", options.get("--protocols").split(","),
                "lease_ms", timeoutMs * 2 / 3, "max_poll_interval_ms", pollMs), CreateMode.EPHEMERAL));
        }
        zk.multi(ops);
        version = stat.getVersion() + 1;
        lastCommit = now();
        isWoken = true;
        if (isLast) renew();  // at once: nothing is fetched before the first
        return isLast;
    }

    /** Which entries of an old `running` count: those that a command has named to it ("The two fences"). */
    Predicate<Partition> counting(String old) throws Exception {
        try {
            JsonNode state = JSON.readTree(zk.getData(root + "/state", false, null)), granted = state.path("granted");
            JsonNode mine = (granted.has(consumer) ? granted : state.path("target")).path(consumer);
            Set<Partition> named = new HashSet<>();
            for (JsonNode map : granted.has(consumer) ? List.of(mine.path("partitions")) : mine.path("ownershipMap"))
                named.addAll(partitions(JSON.convertValue(map, MAP)));
            if (granted.isObject()) return part -> mine.path("incarnation").asText().equals(old) && named.contains(part);
        } catch (KeeperException.NoNodeException | IOException | IllegalArgumentException lost) { /* `granted` is missing */ }
        return part -> {
            try {
                if (zk.exists(root + "/offsets/" + part.topic, false) == null) return false;
                return JSON.readTree(zk.getData(owner(part), false, null)).path("incarnation").asText().equals(old);
            } catch (Exception noOwner) { return true; }
        };
    }

    // ---- one turn: the lease, commands, offsets, records, a sign of life

    void turn() throws Exception {
        try {
            if (now() - lastRenewal >= timeoutMs / 6) renew();
            if (isWoken) drain();
            readOffsets();
            fetch();
            Channel after = channel.copy();
            after.touched++;
            if (now() - lastCommit > pollMs / 3) commit(after, List.of());
            Thread.sleep(20);
        } catch (Refused refused) {  // a command was withdrawn, or a parent of owners or offsets is missing
            String[] names = refused.getMessage().substring(root.length() + 1).split("/");
            if (!names[0].equals("channel")) ensure(root + "/" + names[0], root + "/" + names[0] + "/" + names[1]);
            isWoken = true;
        } catch (KeeperException.ConnectionLossException lost) { isWoken = true; }  // of a read: a multi settles its own
    }

    /** 8: sync, then the channel. How long may be fetched is told by the two renewals before this one. */
    void renew() throws Exception {
        lastRenewal = now();
        settle(null);
        if (lastRenewal - answered < timeoutMs * 16 / 100) return;
        sent = new long[] {lastRenewal, sent[0], sent[1]};
        answered = now();
        leaseUntil = Math.min(sent[1] + timeoutMs * 2 / 3, sent[2] + timeoutMs * 11 / 12);
    }

    /** Sync and read the channel; whether the multi that was to write `after` has happened. */
    boolean settle(Channel after) throws Exception {
        CompletableFuture<Integer> synced = new CompletableFuture<>();
        zk.sync(path, (code, where, context) -> synced.complete(code), null);
        if (synced.get() != 0) throw KeeperException.create(KeeperException.Code.get(synced.get()), path);
        try {
            Stat stat = new Stat();
            byte[] data = zk.getData(path, false, stat);
            if (stat.getVersion() == version) return false;
            if (stat.getVersion() == version + 1 && after != null && Arrays.equals(data, JSON.writeValueAsBytes(after))) return true;
            Channel found = read(data, Channel.class);
            throw new Over(found.ended, !found.incarnation.equals(channel.incarnation) || FOR_GOOD.contains("" + found.error));
        } catch (KeeperException.NoNodeException | IOException unreadable) { throw new Over("the channel is unreadable", false); }
    }

    /** Set the channel by its version, with other operations. */
    void commit(Channel after, List<Op> more) throws Exception {
        multi(Op.setData(path, JSON.writeValueAsBytes(after), version), more, after);
        channel = after;
        version++;
        lastCommit = now();
    }

    /** Other operations under the fence, which stays. */
    void guard(List<Op> more) throws Exception { multi(Op.check(path, version), more, null); }

    void multi(Op fence, List<Op> more, Channel after) throws Exception {
        List<Op> ops = Stream.concat(Stream.of(fence), more.stream()).toList();
        try {
            zk.multi(ops);
        } catch (KeeperException.ConnectionLossException lost) {
            while (true)
                try {
                    if (settle(after)) return;
                    throw new Refused(path);  // it has not happened, or was a guard: read again
                } catch (KeeperException.ConnectionLossException again) { Thread.sleep(20); }
        } catch (KeeperException.NoNodeException | KeeperException.NodeExistsException | KeeperException.BadVersionException e) {
            int first = 0;
            while (((OpResult.ErrorResult) e.getResults().get(first)).getErr() == 0) first++;
            if (first == 0) settle(null);
            throw new Refused(ops.get(first).getPath());
        }
    }

    // ---- 2 to 5: commands

    void drain() throws Exception {
        isWoken = false;
        List<Command> commands = new ArrayList<>();
        for (String name : zk.getChildren(path, true))
            try {
                commands.add(command(name, zk.getData(path + "/" + name, false, null)));
            } catch (IOException unreadable) {
                guard(List.of(Op.delete(path + "/" + name, -1)));
            } catch (KeeperException.NoNodeException withdrawn) { /* never applied */ }
        commands.sort(Comparator.comparing((Command each) -> each.epoch).thenComparing(each -> each.generation).thenComparing(each -> each.name));
        for (Command command : commands) {
            boolean isOld = command.epoch < channel.epoch || (command.epoch == channel.epoch && command.generation < channel.generation);
            if (isOld) guard(List.of(Op.delete(path + "/" + command.name, -1)));
            else apply(command);
        }
    }

    /** :raises IOException: when it is no stop or start for this incarnation. */
    Command command(String name, byte[] data) throws IOException {
        Command command = read(data, Command.class);
        command.name = name;
        command.stopped = partitions(command.partitions);
        for (var each : command.ownershipMap.entrySet())
            partitions(each.getValue()).forEach(part -> command.started.put(part, each.getKey()));
        boolean isKnown = "stop-fetcher".equals(command.option) || "start-fetcher".equals(command.option);
        if (!isKnown || !channel.incarnation.equals(command.incarnation)) throw new IOException("not for this incarnation");
        for (Long each : Arrays.asList(command.epoch, command.generation))
            if (each == null || each < 0 || each >= 1L << 53) throw new IOException("no epoch or generation");
        return command;
    }

    /** A stop or start, in one multi or several: all but the last check that the command is still there. */
    void apply(Command command) throws Exception {
        boolean isStop = command.option.equals("stop-fetcher");
        List<Partition> named = isStop
            ? select(channel.partitions(), part -> command.stopped.isEmpty() || command.stopped.contains(part))
            : select(command.started.keySet(), part -> !channel.partitions().contains(part));
        Set<String> owned = isStop ? Set.of() : existing("owners", named);
        List<Partition> parts = select(named, part -> !owned.contains(owner(part)));
        if (isStop) gone("partitions_revoked", parts);
        for (int from = 0; from == 0 || from < parts.size(); from += STEP) {
            List<Partition> some = parts.subList(from, Math.min(from + STEP, parts.size()));
            boolean isLast = from + STEP >= parts.size();
            Channel after = channel.copy();
            List<Op> ops = isStop ? release(channel, some) : new ArrayList<>();
            if (isStop) after.drop(some);
            else for (Partition part : some) {
                after.set(part, null);
                after.topics.put(part.topic, command.topics.getOrDefault(part.topic, ""));
                ops.add(create(owner(part), Map.of("version", 1, "thread", command.started.get(part), "consumer", consumer,
                    "incarnation", channel.incarnation, "generation", command.generation), CreateMode.EPHEMERAL));
            }
            if (isLast || !isStop) {  // a stop in progress stays one of the generation before
                after.epoch = command.epoch;
                after.generation = command.generation;
                after.command = command.name;
                after.refused.clear();
                for (Partition part : select(named, each -> !parts.contains(each)))
                    after.refused.merge(part.topic, "" + part.partition, (one, other) -> one + "," + other);
            }
            ops.add(isLast ? Op.delete(path + "/" + command.name, -1) : Op.check(path + "/" + command.name, -1));
            commit(after, ops);
        }
    }

    /** The operations that end ownerships: offsets written (nulls are left alone), owner znodes removed. */
    List<Op> release(Channel of, Collection<Partition> parts) throws Exception {
        List<Op> ops = new ArrayList<>();
        Set<String> there = existing("offsets", parts), owned = existing("owners", parts);
        for (Partition part : parts) {
            if (of.offset(part) != null) {
                var data = Map.of("version", 1, "offset", of.offset(part), "topic_id", of.topics.get(part.topic), "generation", of.generation);
                boolean isThere = there.contains(offsets(part));
                ops.add(isThere ? Op.setData(offsets(part), JSON.writeValueAsBytes(data), -1) : create(offsets(part), data, CreateMode.PERSISTENT));
            }
            if (owned.contains(owner(part))) ops.add(Op.delete(owner(part), -1));
        }
        return ops;
    }

    // ---- offsets and records

    /** Of what was claimed: the offset in offsets/, or the beginning, recorded there before the first fetch. */
    void readOffsets() throws Exception {
        Map<Partition, Long> found = new HashMap<>();
        List<Op> ops = new ArrayList<>();
        for (Partition part : select(channel.partitions(), each -> channel.offset(each) == null && notBefore.getOrDefault(each, 0L) <= now())) {
            if (found.size() == STEP) break;
            String id = channel.topics.get(part.topic);
            var start = Map.of("version", 1, "offset", 0, "topic_id", id, "generation", channel.generation, "start", "beginning");
            try {
                Stat stat = new Stat();
                JsonNode node = read(zk.getData(offsets(part), false, stat), JsonNode.class);
                if (!node.path("offset").canConvertToLong()) throw new IOException("no offset");
                boolean isOurs = node.path("topic_id").asText().equals(id);
                if (!isOurs) ops.add(Op.setData(offsets(part), JSON.writeValueAsBytes(start), stat.getVersion()));
                found.put(part, isOurs ? node.get("offset").asLong() : 0L);
            } catch (KeeperException.NoNodeException none) {
                ops.add(create(offsets(part), start, CreateMode.PERSISTENT));
                found.put(part, 0L);
            } catch (IOException unreadable) { notBefore.put(part, now() + 1000); }  // to start over would repeat records
        }
        if (!ops.isEmpty()) guard(ops);
        found.forEach(channel::set);
        List<Partition> fresh = select(channel.partitions(), part -> channel.offset(part) != null && !held.contains(part));
        held.addAll(fresh);
        if (!fresh.isEmpty()) print("partitions_assigned", Map.of("partitions", fresh));
    }

    /** Deliver records while the lease runs, and commit them. */
    void fetch() throws Exception {
        Channel after = channel.copy();
        List<Batch> batches = new ArrayList<>();
        int count = 0;
        for (Partition part : held) {
            long offset = channel.offset(part);
            int records = count < MOST_RECORDS ? records(part, offset, MOST_RECORDS - count).size() : 0;
            if (records == 0) continue;
            count += records;
            after.set(part, offset + records);
            batches.add(new Batch(part.topic, part.partition, records, offset, offset + records - 1));
        }
        if (count == 0 || now() >= leaseUntil) return;
        print("records_consumed", Map.of("count", count, "partitions", batches));
        commit(after, List.of());
        print("offsets_committed", Map.of("success", true, "offsets",
            batches.stream().map(each -> new Position(each.topic, each.partition, each.maxOffset + 1)).toList()));
    }

    /** Up to `most` values of the embedded log: [topic]/[id]/[partition]/[first offset].arrow, each file complete. */
    List<byte[]> records(Partition part, long offset, int most) throws IOException {
        File folder = new File(options.get("--log-dir"), part.topic + "/" + channel.topics.get(part.topic) + "/" + part.partition);
        List<byte[]> found = new ArrayList<>();
        if (offset == ends.getOrDefault(part, -1L) && !file(folder, offset).exists()) return found;  // the next is named by this end
        String[] names = folder.list((where, name) -> name.matches("\\d{20}\\.arrow"));
        long first = Stream.of(names == null ? new String[0] : names).mapToLong(name -> Long.parseLong(name.substring(0, 20)))
            .filter(each -> each <= offset).max().orElse(-1);
        if (first < 0) return found;
        try (var file = new FileInputStream(file(folder, first)); var reader = new ArrowFileReader(file.getChannel(), allocator)) {
            while (found.size() < most && reader.loadNextBatch()) {
                var values = (VarBinaryVector) reader.getVectorSchemaRoot().getVector("value");
                for (int row = 0; row < values.getValueCount() && found.size() < most; row++, first++)
                    if (first >= offset) found.add(values.get(row));
            }
        }
        ends.put(part, first);
        return found;
    }

    // ---- 10: leave

    void leave() throws Exception {
        List<Partition> parts = channel.partitions();
        gone("partitions_revoked", parts);
        boolean isWhole = parts.size() <= STEP;  // of more the coordinator writes the rest: the fence has moved
        while (true)
            try {
                Channel after = channel.copy();
                after.ended = "left";
                if (isWhole) after.drop(parts);
                List<Op> ops = isWhole ? release(channel, parts) : new ArrayList<>();
                ops.add(Op.delete(root + "/ids/" + consumer, -1));
                commit(after, ops);
                return;
            } catch (Refused again) { renew(); }
    }

    // ---- parts

    void gone(String name, Collection<Partition> parts) {
        List<Partition> these = select(parts, held::contains);
        these.forEach(held::remove);
        if (!these.isEmpty()) print(name, Map.of("partitions", these));
    }

    static void print(String name, Map<String, Object> fields) {
        Map<String, Object> event = new LinkedHashMap<>(Map.of("timestamp", System.currentTimeMillis(), "name", name));
        event.putAll(fields);
        System.out.println(JSON.valueToTree(event).toString());
    }

    /** The znodes below `owners` or `offsets` of the topics of these partitions. */
    Set<String> existing(String kind, Collection<Partition> parts) throws Exception {
        Set<String> found = new HashSet<>();
        for (String topic : parts.stream().map(Partition::topic).collect(Collectors.toSet()))
            try {
                String parent = root + "/" + kind + "/" + topic;
                zk.getChildren(parent, false).forEach(name -> found.add(parent + "/" + name));
            } catch (KeeperException.NoNodeException none) { /* the multi is refused, and `turn` makes it */ }
        return found;
    }

    void ensure(String... paths) throws Exception {
        for (String each : paths)
            try { zk.create(each, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT); }
            catch (KeeperException.NodeExistsException there) { /* another has made it */ }
    }

    /** Topic -> ranges, as `0-3,7`: ascending, each number once, at most 10,000 of them. */
    static Set<Partition> partitions(Map<String, String> map) throws IOException {
        Set<Partition> found = new LinkedHashSet<>();
        for (var topic : map.entrySet()) {
            int least = 0;
            for (String each : topic.getValue().split(",")) {
                boolean isRange = each.matches("\\d{1,7}(-\\d{1,7})?") && topic.getKey().matches("(?!\\.\\.?$)[\\w.-]{1,249}");
                int first = isRange ? Integer.parseInt(each.split("-")[0]) : -1;
                int last = isRange ? Integer.parseInt(each.substring(each.indexOf('-') + 1)) : -1;
                if (first < least || last < first || last - first + found.size() >= MOST_PARTITIONS) throw new IOException(each);
                for (least = first; least <= last; least++) found.add(new Partition(topic.getKey(), least));
            }
        }
        return found;
    }

    static <T> T read(byte[] data, Class<T> as) throws IOException {
        T found = data == null || data.length > MOST_BYTES ? null : JSON.readValue(data, as);
        if (found == null) throw new IOException("no object");
        return found;
    }

    static Op create(String path, Map<String, ?> data, CreateMode mode) throws IOException {
        return Op.create(path, JSON.writeValueAsBytes(data), ZooDefs.Ids.OPEN_ACL_UNSAFE, mode);
    }

    static List<Partition> select(Collection<Partition> parts, Predicate<Partition> which) { return parts.stream().filter(which).toList(); }
    static File file(File folder, long first) { return new File(folder, String.format("%020d.arrow", first)); }
    static long now() { return System.nanoTime() / 1_000_000; }
    String owner(Partition part) { return root + "/owners/" + part.topic + "/" + part.partition; }
    String offsets(Partition part) { return root + "/offsets/" + part.topic + "/" + part.partition; }
}
