import java.util.ArrayList;
import java.util.List;
import java.util.Scanner;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * The hand-offs of leasehold's ZooKeeper bench on Curator's InterProcessMutex.
 *
 * <p>{@code Turns SERVERS CLIENTS SESSION_MS} opens this many clients, each with its own thread. It reads commands from standard
 * input: after "go", all clients acquire and release one lock repeatedly, until "stop"; "tally" only reports. It prints one line of
 * JSON at its start and after each command.
 */
final class Turns {
    private static final String PATH = "/curator/contest";

    private final List<InterProcessMutex> locks = new ArrayList<>();
    private final List<Thread> threads = new ArrayList<>();
    private volatile boolean stopped;
    // Written only by the holder of the lock, if the lock excludes others.
    private volatile long handOffs;
    private volatile int last = -1;

    private Turns(String servers, int clients, int session) throws Exception {
        for (int index = 0; index < clients; index++) {
            CuratorFramework client =
                    CuratorFrameworkFactory.newClient(servers, session, 15_000, new ExponentialBackoffRetry(1000, 3));
            client.start();
            client.blockUntilConnected();
            locks.add(new InterProcessMutex(client, PATH));
        }
    }

    private void work(int index) {
        try {
            InterProcessMutex lock = locks.get(index);
            while (!stopped) {
                lock.acquire();
                try {
                    handOffs = handOffs + (last == index ? 0 : 1);
                    last = index;
                } finally {
                    lock.release();
                }
            }
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    private void go() {
        stopped = false;
        for (int index = 0; index < locks.size(); index++) {
            int own = index;
            threads.add(new Thread(() -> work(own)));
        }
        threads.forEach(Thread::start);
    }

    private void stop() throws InterruptedException {
        stopped = true;
        for (Thread thread : threads) {
            thread.join();
        }
        threads.clear();
    }

    private void report() {
        System.out.println("{\"hand_offs\": " + handOffs + "}");
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        Turns all = new Turns(arguments[0], Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]));
        all.report();
        Scanner words = new Scanner(System.in);
        while (words.hasNext()) {
            String word = words.next();
            if (word.equals("go")) {
                all.go();
            } else if (word.equals("stop")) {
                all.stop();
            }
            all.report();
        }
        System.exit(0);
    }
}
