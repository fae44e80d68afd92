/* A process whose memory map is locked for good, as any user can make one:

       unshare -Urm frozen FOLDER LOCK [COMMAND...]

   FUSE_DEVICE names the device. FOLDER is mounted over; LOCK is a file that the process keeps locked, or ""; COMMAND is run as its child then.

   A FUSE server never answers a read. A helper reads a page of that file through /proc/PID/mem and holds the lock of
   the map for reading; the process then asks for it for writing. Whoever wants to read its cmdline waits behind both.
   Prints "PID\n" once that is so. It ends with its standard input, or after 30 seconds. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int device;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void answer(unsigned long long unique, int error, const void *body, size_t size) {
    char buffer[4096];
    struct fuse_out_header head = {.len = sizeof head + size, .error = error, .unique = unique};
    memcpy(buffer, &head, sizeof head);
    memcpy(buffer + sizeof head, body, size);
    if (write(device, buffer, head.len) < 0) fail("write");
}

static struct fuse_attr attributes(unsigned long long node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .size = 65536, .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644};
    return attr;
}

/* Returns when a read was asked for. */
static void serve(void) {
    static char buffer[1 << 18];
    for (;;) {
        ssize_t size = read(device, buffer, sizeof buffer);
        if (size < 0) fail("read");
        struct fuse_in_header *head = (void *)buffer;
        if (head->opcode == FUSE_INIT) {
            struct fuse_init_in *in = (void *)(head + 1);
            struct fuse_init_out out = {.major = FUSE_KERNEL_VERSION, .minor = in->minor, .max_write = 4096};
            answer(head->unique, 0, &out, sizeof out);
        } else if (head->opcode == FUSE_LOOKUP) {
            struct fuse_entry_out out = {.nodeid = 2, .attr_valid = 9999, .entry_valid = 9999, .attr = attributes(2)};
            answer(head->unique, 0, &out, sizeof out);
        } else if (head->opcode == FUSE_GETATTR) {
            struct fuse_attr_out out = {.attr_valid = 9999, .attr = attributes(head->nodeid)};
            answer(head->unique, 0, &out, sizeof out);
        } else if (head->opcode == FUSE_OPEN) {
            struct fuse_open_out out = {.fh = 1};
            answer(head->unique, 0, &out, sizeof out);
        } else if (head->opcode == FUSE_READ) {
            return;
        } else if (head->opcode != FUSE_FORGET && head->opcode != FUSE_INTERRUPT) {
            answer(head->unique, -38, NULL, 0);
        }
    }
}

static char state_of(int pid) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file)) return '?';
    fclose(file);
    return strrchr(line, ')')[2];
}

/* The server: ends with standard input, and so frees everybody. */
static void keep(int victim, int told, int begins) {
    alarm(30);
    serve();
    if (write(told, "x", 1) < 0) fail("tell");
    while (state_of(victim) != 'D') usleep(1000);
    printf("%d\n", victim);
    fflush(stdout);
    close(begins); /* the command may begin */
    char byte;
    while (read(0, &byte, 1) > 0) continue;
    kill(victim, SIGKILL);
    exit(0); /* the device is closed, and what was asked of it fails */
}

static void run_when_frozen(int waits, char **command) {
    char byte;
    if (fork() != 0) return;
    while (read(waits, &byte, 1) > 0) continue;
    execvp(command[0], command);
    fail(command[0]);
}

int main(int count, char **words) {
    char path[4096], mount_options[128];
    int told[2], begins[2];
    alarm(60); /* if the test that started it was killed */
    device = open(getenv("FUSE_DEVICE"), O_RDWR | O_CLOEXEC);
    if (device < 0 || count < 3) fail("/dev/fuse");
    int lock = words[2][0] ? open(words[2], O_RDWR | O_CREAT, 0666) : -1;
    if (lock >= 0 && lockf(lock, F_TLOCK, 0)) fail("lock");
    snprintf(mount_options, sizeof mount_options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (mount("frozen", words[1], "fuse", MS_NOSUID | MS_NODEV, mount_options)) fail("mount");
    snprintf(path, sizeof path, "%s/file", words[1]);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    if (pipe(told) || pipe(begins)) fail("pipe");
    int victim = getpid();
    if (fork() == 0) {
        close(begins[0]);
        keep(victim, told[1], begins[1]);
    }
    close(begins[1]);
    if (count > 3) run_when_frozen(begins[0], words + 3);
    int file = open(path, O_RDONLY);
    char *page = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, file, 0);
    if (file < 0 || page == MAP_FAILED) fail("file");
    close(device); /* the server's alone: when that ends, so does the file system */
    if (fork() == 0) {
        char byte;
        alarm(30);
        snprintf(path, sizeof path, "/proc/%d/mem", victim);
        int memory = open(path, O_RDONLY);
        if (memory < 0) fail("mem");
        pread(memory, &byte, 1, (off_t)page);
        exit(0);
    }
    char byte;
    if (read(told[0], &byte, 1) != 1) fail("told");
    mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pause();
    return 0;
}
