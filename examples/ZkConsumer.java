// A consumer of a zk-group-coordinator group in one file of Java 17, written from zk_paths.md (numbers are its steps) and
// docs/conformance.md, which says how to run it. It passes `zk-coordinator conformance --without static-members,wildcards`.
import com.fasterxml.jackson.annotation.JsonInclude;
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
    static final Set<String> FOR_GOOD = Set.of("FencedInstanceId", "InconsistentGroupProtocol", "GroupMaxSizeReached");
    static final JsonNode NOTHING = JSON.createObjectNode();
    record Partition(String topic, int partition) {}
    static class Channel {  // the data of channel/[consumer]
        public String incarnation = "", command = "", ended;
        public long version = 1, epoch, generation;
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
        void applied(Command of) { epoch = of.epoch; generation = of.generation; command = of.name; refused.clear(); }
        void drop(Collection<Partition> parts) {
            parts.forEach(part -> running.get(part.topic).remove(part.partition));
            running.values().removeIf(Map::isEmpty);
            topics.keySet().retainAll(running.keySet());
        }
    }
    static class Command {  // `threads` has the thread of each partition of a start, `stopped` the partitions of a stop
        public String name, option, incarnation;
        public Long epoch, generation;
        public JsonNode ownershipMap = NOTHING, partitions = NOTHING, topics = NOTHING;
        Map<Partition, String> threads = new LinkedHashMap<>();
        Set<Partition> stopped;
    }
    static class Over extends Exception { Over(String error) { super(error); } }  // the incarnation has ended
    static class Refused extends Exception { Refused(String path) { super(path); } }  // by a znode other than the channel: read again
    final Map<String, String> options = new HashMap<>();
    final String consumer, root, path;
    final Set<String> own = new HashSet<>();  // this process's incarnations
    final Set<Partition> held = new LinkedHashSet<>();  // assigned, by the lines printed
    final Map<Partition, Long> ends = new HashMap<>(), notBefore = new HashMap<>();
    final RootAllocator allocator = new RootAllocator();
    volatile boolean isStopping, isWoken;
    ZooKeeper zk;
    Channel channel, unsure;  // `unsure`: written by a multi whose reply was lost
    int version;  // of the channel's data: the fence
    long pollMs, timeoutMs, lastRenewal, lastCommit, leaseUntil, answered;
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
        Runtime.getRuntime().addShutdownHook(new Thread(() -> { self.isStopping = true; new CompletableFuture<>().join(); }));  // SIGTERM
        Runtime.getRuntime().halt(self.run());
    }
    int run() throws Exception {
        print("startup_complete", Map.of());
        boolean isOver = false;
        while (!isStopping && !isOver) {
            try {
                register();
                while (!isStopping) turn();
                leave();
            } catch (Over | Refused | KeeperException.SessionExpiredException | KeeperException.ConnectionLossException e) {
                System.err.println("over: " + e.getMessage());
                isOver = e instanceof Over && FOR_GOOD.contains("" + e.getMessage());
            }
            gone("partitions_lost", List.copyOf(held));
            zk.close();
            if (!isStopping) Thread.sleep(500);
        }
        print("shutdown_complete", Map.of());
        return isOver ? 1 : 0;
    }
    /** Life of a consumer, 1, on a new session, whose opening stands for the renewals before the first. */
    void register() throws Exception {
        long begun = now();
        zk = new ZooKeeper(options.get("--zk"), Integer.parseInt(options.get("--session-timeout-ms")), event -> isWoken = true);
        while (zk.getState() != ZooKeeper.States.CONNECTED && !isStopping) Thread.sleep(10);
        timeoutMs = zk.getSessionTimeout();
        sent = new long[] {begun, begun, begun};
        answered = leaseUntil = 0;
        for (int tries = 0; ; tries++)
            try {
                ensure("/consumers", "/consumers/groups", root, root + "/channel", path);
                for (String each : "ids seats owners offsets segments queries history pools".split(" ")) ensure(root + "/" + each);
                if (isRegistered()) return;
            } catch (KeeperException.BadVersionException | KeeperException.NodeExistsException | KeeperException.NoNodeException changed) {
                if (tries > 50) throw changed;
            }
    }
    /** The next multi of the registration; whether it was the last. */
    boolean isRegistered() throws Exception {
        List<String> commands = zk.getChildren(path, false);
        Stat stat = new Stat();
        Channel before = new Channel();
        try { before = read(zk.getData(path, false, stat), Channel.class); } catch (IOException unreadable) { /* as one without data */ }
        if (!own.isEmpty() && !before.incarnation.isEmpty() && !own.contains(before.incarnation)) throw new Over("FencedInstanceId");
        for (Partition part : before.partitions()) if (!writes(before.incarnation, part)) before.drop(List.of(part));
        List<Partition> some = before.partitions().stream().limit(STEP).toList();
        boolean isLast = some.size() == before.partitions().size();
        boolean isFenced = isLast || before.ended != null;  // the fence first, then the partitions in steps
        List<Op> ops = isFenced ? release(before, some) : new ArrayList<>();
        if (isFenced) before.drop(some);
        else { before.ended = "being taken over"; before.error = "UnknownMemberId"; }
        channel = new Channel();
        channel.incarnation = UUID.randomUUID().toString().replace("-", "");
        ops.add(0, set(path, isLast ? channel : before, stat.getVersion()));
        if (isLast) {
            String ids = root + "/ids/" + consumer, seat = root + "/seats/" + consumer;
            own.add(channel.incarnation);
            commands.forEach(name -> ops.add(Op.delete(path + "/" + name, -1)));
            for (String node : List.of(ids, seat)) if (has(node)) ops.add(Op.delete(node, -1));
            Map<String, Integer> topics = new TreeMap<>();
            for (String each : options.get("--topics").split(",")) topics.put(each.split(":")[0], Integer.valueOf(each.split(":")[1]));
            ops.add(create(ids, Map.of("version", 1, "subscription", topics, "pattern", "static",
                "incarnation", channel.incarnation, "host", "java", "protocols", options.get("--protocols").split(","),
                "lease_ms", timeoutMs * 2 / 3, "max_poll_interval_ms", pollMs), true));
        }
        zk.multi(ops);
        version = stat.getVersion();
        done(channel);
        isWoken = isLast;
        if (isLast) renew();  // at once: nothing is fetched before the first
        return isLast;
    }
    /** Whether the offset of a partition in an old `running` is written ("The two fences"). */
    boolean writes(String old, Partition part) throws Exception {
        JsonNode owner = json(owner(part));
        return has(root + "/offsets/" + part.topic) && (owner.isEmpty() || owner.path("incarnation").asText().equals(old));
    }
    void turn() throws Exception {  // the lease, commands, offsets, records, a sign of life
        try {
            if (unsure != null || now() - lastRenewal >= timeoutMs / 6) renew();
            if (isWoken) drain();
            readOffsets();
            fetch();
            Channel after = channel.copy();
            if (now() - lastCommit > pollMs / 3) { after.touched++; commit(after, List.of()); }
            Thread.sleep(20);
        } catch (Refused refused) {  // a command was withdrawn, or a parent of owners or offsets is missing
            String[] names = refused.getMessage().substring(root.length() + 1).split("/");
            if (!names[0].equals("channel")) ensure(root + "/" + names[0], root + "/" + names[0] + "/" + names[1]);
            isWoken = true;
        } catch (KeeperException.ConnectionLossException lost) { isWoken = true; }
    }
    /** 8: sync, then the channel. The lease counts from the two renewals before this one. */
    void renew() throws Exception {
        lastRenewal = now();
        settle();
        if (lastRenewal - answered < timeoutMs * 16 / 100) return;
        sent = new long[] {lastRenewal, sent[0], sent[1]};
        answered = now();
        leaseUntil = Math.min(sent[1] + timeoutMs * 2 / 3, sent[2] + timeoutMs * 11 / 12);
    }
    /** 7: sync and read the channel, which shows whether a multi without a reply has happened. */
    void settle() throws Exception {
        CompletableFuture<Integer> synced = new CompletableFuture<>();
        zk.sync(path, (code, where, context) -> synced.complete(code), null);
        if (synced.get() != 0) throw KeeperException.create(KeeperException.Code.get(synced.get()), path);
        try {
            Stat stat = new Stat();
            Channel found = read(zk.getData(path, false, stat), Channel.class);
            boolean isDone = unsure != null && stat.getVersion() == version + 1 && JSON.valueToTree(found).equals(JSON.valueToTree(unsure));
            if (!isDone && stat.getVersion() != version)
                throw new Over(found.incarnation.equals(channel.incarnation) ? found.error : "FencedInstanceId");
            if (isDone) done(unsure);
            unsure = null;
        } catch (KeeperException.NoNodeException | IOException unreadable) { throw new Over("unreadable"); }
    }
    void done(Channel after) { channel = after; version++; lastCommit = now(); }
    /** A multi under the fence: the channel set by its version, or where `after` is null only checked. */
    void commit(Channel after, List<Op> more) throws Exception {
        Op fence = after == null ? Op.check(path, version) : set(path, after, version);
        List<Op> ops = Stream.concat(Stream.of(fence), more.stream()).toList();
        try {
            zk.multi(ops);
            if (after != null) done(after);
        } catch (KeeperException.ConnectionLossException lost) { unsure = after; throw lost;
        } catch (KeeperException.NoNodeException | KeeperException.NodeExistsException | KeeperException.BadVersionException e) {
            int first = 0;
            while (((OpResult.ErrorResult) e.getResults().get(first)).getErr() == 0) first++;
            if (first == 0) settle();
            throw new Refused(ops.get(first).getPath());
        }
    }
    void drain() throws Exception {  // 2: take the commands of the channel in their order
        isWoken = false;
        List<Command> commands = new ArrayList<>();
        for (String name : zk.getChildren(path, true))
            try { commands.add(command(name, zk.getData(path + "/" + name, false, null))); }
            catch (IOException unreadable) { commit(null, List.of(Op.delete(path + "/" + name, -1))); }
            catch (KeeperException.NoNodeException withdrawn) { /* never applied */ }
        commands.sort(Comparator.comparing((Command each) -> each.epoch).thenComparing(each -> each.generation).thenComparing(each -> each.name));
        for (Command each : commands)
            if (each.epoch < channel.epoch || (each.epoch == channel.epoch && each.generation < channel.generation))
                commit(null, List.of(Op.delete(path + "/" + each.name, -1)));
            else apply(each);
    }
    /** :raises IOException: when it is no stop or start for this incarnation. */
    Command command(String name, byte[] data) throws IOException {
        Command command = read(data, Command.class);
        command.name = name;
        command.stopped = partitions(command.partitions);
        for (var each : command.ownershipMap.properties()) partitions(each.getValue()).forEach(part -> command.threads.put(part, each.getKey()));
        boolean isKnown = "stop-fetcher".equals(command.option) || "start-fetcher".equals(command.option);
        for (Long each : Arrays.asList(command.epoch, command.generation)) isKnown &= each != null && each >= 0 && each < 1L << 53;
        if (!isKnown || !channel.incarnation.equals(command.incarnation)) throw new IOException("not for this incarnation");
        return command;
    }
    /** 3 to 5: a stop or start, in one multi or several: all but the last check that the command is still there. */
    void apply(Command command) throws Exception {
        boolean isStop = command.option.equals("stop-fetcher");
        Set<Partition> running = new LinkedHashSet<>(channel.partitions()), refused = new LinkedHashSet<>();
        List<Partition> parts = new ArrayList<>(isStop
            ? select(running, part -> command.stopped.isEmpty() || command.stopped.contains(part))
            : select(command.threads.keySet(), part -> !running.contains(part)));
        if (!isStop) for (Partition part : parts) if (has(owner(part))) refused.add(part);
        parts.removeAll(refused);
        if (isStop) gone("partitions_revoked", parts);
        for (int from = 0; from == 0 || from < parts.size(); from += STEP) {
            List<Partition> some = parts.subList(from, Math.min(from + STEP, parts.size()));
            boolean isLast = from + STEP >= parts.size();
            Channel after = channel.copy();
            List<Op> ops = isStop ? release(channel, some) : new ArrayList<>();
            if (isStop) after.drop(some);
            else for (Partition part : some) {
                after.set(part, null);
                after.topics.put(part.topic, command.topics.path(part.topic).asText());
                ops.add(create(owner(part), Map.of("version", 1, "thread", command.threads.get(part), "consumer", consumer,
                    "incarnation", channel.incarnation, "generation", command.generation), true));
            }
            if (isLast || !isStop) {  // a stop in progress stays one of the generation before
                after.applied(command);
                refused.forEach(part -> after.refused.merge(part.topic, "" + part.partition, (one, other) -> one + "," + other));
            }
            ops.add(isLast ? Op.delete(path + "/" + command.name, -1) : Op.check(path + "/" + command.name, -1));
            commit(after, ops);
        }
    }
    /** The operations that end ownerships: offsets written (nulls are left alone), owner znodes removed. */
    List<Op> release(Channel of, Collection<Partition> parts) throws Exception {
        List<Op> ops = new ArrayList<>();
        for (Partition part : parts) {
            boolean isThere = has(offsets(part));
            if (of.offset(part) != null) ops.add(isThere ? set(offsets(part), offset(of, part), -1) : create(offsets(part), offset(of, part), false));
            if (has(owner(part))) ops.add(Op.delete(owner(part), -1));
        }
        return ops;
    }
    /** 4: of what was claimed the offset in offsets/, or the beginning, recorded there before the first fetch. */
    void readOffsets() throws Exception {
        Map<Partition, Long> found = new HashMap<>();
        List<Op> ops = new ArrayList<>();
        for (Partition part : select(channel.partitions(), each -> channel.offset(each) == null && notBefore.getOrDefault(each, 0L) <= now())) {
            if (found.size() == STEP) break;
            Map<String, Object> start = offset(channel, part);
            start.put("start", "beginning");
            Stat stat = new Stat();
            try {
                JsonNode node = read(zk.getData(offsets(part), false, stat), JsonNode.class);
                if (!node.path("offset").canConvertToLong()) throw new IOException("no offset");
                boolean isOurs = node.path("topic_id").asText().equals(start.get("topic_id"));
                if (!isOurs) ops.add(set(offsets(part), start, stat.getVersion()));
                found.put(part, isOurs ? node.get("offset").asLong() : 0L);
            } catch (KeeperException.NoNodeException none) {
                ops.add(create(offsets(part), start, false));
                found.put(part, 0L);
            } catch (IOException unreadable) { notBefore.put(part, now() + 1000); }  // to start over would repeat records
        }
        if (!ops.isEmpty()) commit(null, ops);
        found.forEach(channel::set);
        List<Partition> fresh = select(channel.partitions(), part -> channel.offset(part) != null && !held.contains(part));
        held.addAll(fresh);
        if (!fresh.isEmpty()) print("partitions_assigned", Map.of("partitions", fresh));
    }
    void fetch() throws Exception {  // deliver records while the lease runs, and commit them
        Channel after = channel.copy();
        List<Object> batches = new ArrayList<>(), offsets = new ArrayList<>();
        int count = 0;
        for (Partition part : held) {
            long offset = channel.offset(part);
            int records = count < MOST_RECORDS ? records(part, offset, MOST_RECORDS - count).size() : 0;
            if (records == 0) continue;
            count += records;
            after.set(part, offset + records);
            batches.add(Map.of("topic", part.topic, "partition", part.partition, "count", records, "minOffset", offset, "maxOffset", offset + records - 1));
            offsets.add(Map.of("topic", part.topic, "partition", part.partition, "offset", offset + records));
        }
        if (count == 0 || now() >= leaseUntil) return;
        print("records_consumed", Map.of("count", count, "partitions", batches));
        commit(channel = after, List.of());  // without an answer it goes on from here, and commits with the next records
        print("offsets_committed", Map.of("success", true, "offsets", offsets));
    }
    /** Up to `most` values of the embedded log: [topic]/[id]/[partition]/[first offset].arrow, each file complete. */
    List<byte[]> records(Partition part, long offset, int most) throws IOException {
        File folder = new File(options.get("--log-dir"), part.topic + "/" + channel.topics.get(part.topic) + "/" + part.partition);
        List<byte[]> found = new ArrayList<>();
        if (offset == ends.getOrDefault(part, -1L) && !file(folder, offset).exists()) return found;  // the next is named by this end
        String[] names = folder.list((where, name) -> name.matches("\\d{20}\\.arrow"));
        long first = Stream.of(names == null ? new String[0] : names).mapToLong(name -> Long.parseLong(name.substring(0, 20)))
            .filter(each -> each <= offset).max().orElse(-1);
        if (first >= 0) try (var file = new FileInputStream(file(folder, first)); var reader = new ArrowFileReader(file.getChannel(), allocator)) {
            while (found.size() < most && reader.loadNextBatch())
                for (int row = 0; row < reader.getVectorSchemaRoot().getRowCount() && found.size() < most; row++, first++)
                    if (first >= offset) found.add(((VarBinaryVector) reader.getVectorSchemaRoot().getVector("value")).get(row));
        }
        ends.put(part, first);
        return found;
    }
    /** 10: of more than one multi holds, the coordinator writes the rest: the fence has moved. */
    void leave() throws Exception {
        List<Partition> parts = channel.partitions();
        gone("partitions_revoked", parts);
        Channel after = channel.copy();
        after.ended = "left";
        List<Op> ops = parts.size() > STEP ? new ArrayList<>() : release(channel, parts);
        if (parts.size() <= STEP) after.drop(parts);
        ops.add(Op.delete(root + "/ids/" + consumer, -1));
        commit(after, ops);
    }
    void gone(String name, Collection<Partition> parts) {
        List<Partition> these = select(parts, held::remove);
        if (!these.isEmpty()) print(name, Map.of("partitions", these));
    }
    static void print(String name, Map<String, Object> fields) {
        System.out.println(JSON.createObjectNode().put("timestamp", System.currentTimeMillis()).put("name", name).setAll(tree(fields)));
    }
    void ensure(String... paths) throws Exception {
        for (String each : paths)
            try { zk.create(each, new byte[0], ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT); }
            catch (KeeperException.NodeExistsException there) { /* another has made it */ }
    }
    /** Topic -> ranges, as `0-3,7`: ascending, each number once, at most 10,000 of them. */
    static Set<Partition> partitions(JsonNode map) throws IOException {
        Set<Partition> found = new LinkedHashSet<>();
        for (var topic : map.properties()) {
            int least = 0;
            for (String each : topic.getValue().asText().split(",")) {
                boolean isRange = each.matches("\\d{1,7}(-\\d{1,7})?") && topic.getKey().matches("(?!\\.\\.?$)[\\w.-]{1,249}");
                int first = isRange ? Integer.parseInt(each.replaceAll("-.*", "")) : -1, last = isRange ? Integer.parseInt(each.replaceAll(".*-", "")) : -1;
                if (first < least || last < first || last - first + found.size() >= MOST_PARTITIONS) throw new IOException(each);
                for (least = first; least <= last; least++) found.add(new Partition(topic.getKey(), least));
            }
        }
        return found;
    }
    static <T> T read(byte[] data, Class<T> as) throws IOException {
        if (data == null || data.length > MOST_BYTES) throw new IOException("no object");
        return Optional.ofNullable(JSON.readValue(data, as)).orElseThrow(() -> new IOException("null"));
    }
    JsonNode json(String path) throws Exception {
        try { return read(zk.getData(path, false, null), JsonNode.class); }
        catch (KeeperException.NoNodeException | IOException none) { return NOTHING; }
    }
    static Map<String, Object> offset(Channel of, Partition part) {
        long offset = of.offset(part) == null ? 0 : of.offset(part);
        return new HashMap<>(Map.of("version", 1, "offset", offset, "topic_id", of.topics.getOrDefault(part.topic, ""), "generation", of.generation));
    }
    static Op create(String path, Map<String, ?> data, boolean isEphemeral) throws IOException {
        CreateMode mode = isEphemeral ? CreateMode.EPHEMERAL : CreateMode.PERSISTENT;
        return Op.create(path, JSON.writeValueAsBytes(data), ZooDefs.Ids.OPEN_ACL_UNSAFE, mode);
    }
    static Op set(String path, Object data, int version) throws IOException { return Op.setData(path, JSON.writeValueAsBytes(data), version); }
    boolean has(String path) throws Exception { return zk.exists(path, false) != null; }
    static List<Partition> select(Collection<Partition> parts, Predicate<Partition> which) { return parts.stream().filter(which).toList(); }
    static File file(File folder, long first) { return new File(folder, String.format("%020d.arrow", first)); }
    static com.fasterxml.jackson.databind.node.ObjectNode tree(Object of) { return JSON.valueToTree(of); }
    static long now() { return System.nanoTime() / 1_000_000; }
    String owner(Partition part) { return root + "/owners/" + part.topic + "/" + part.partition; }
    String offsets(Partition part) { return owner(part).replaceFirst("/owners/", "/offsets/"); }
}
