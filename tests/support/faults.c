/* Makes open, write, truncate and fsync below one folder fail at random, for tests; LD_PRELOAD it.
 *
 * FAULTS_FOLDER names the folder, FAULTS_CONTROL a file with `struct control` in it, which the test changes at any time.
 * What fails is drawn from the seed and a counter that all processes share.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

struct control {
    uint32_t seed, counter;
    uint32_t one_in; /* one of so many calls fails; 0: none does */
    uint32_t error;  /* with this errno */
    uint32_t failed; /* how many have */
};

static struct control *control;
static const char *folder;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULTS_CONTROL");
    int (*really_open)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    int descriptor = path ? really_open(path, O_RDWR | O_CLOEXEC) : -1;
    folder = getenv("FAULTS_FOLDER");
    if (descriptor < 0 || !folder)
        return;
    void *mapped = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    control = mapped == MAP_FAILED ? NULL : mapped;
    close(descriptor);
}

static int drawn(void) {
    uint32_t value = control->seed + 0x9e3779b9u * __atomic_add_fetch(&control->counter, 1, __ATOMIC_RELAXED);
    value = (value ^ (value >> 16)) * 0x85ebca6bu;
    value = (value ^ (value >> 13)) * 0xc2b2ae35u;
    return (value ^ (value >> 16)) % control->one_in == 0;
}

static int fails(const char *path) {
    if (strncmp(path, folder, strlen(folder)) != 0 || !drawn())
        return 0;
    __atomic_add_fetch(&control->failed, 1, __ATOMIC_RELAXED);
    errno = (int)control->error;
    return 1;
}

static int fails_at(int descriptor) {
    char name[64], path[4096];
    if (!control || !control->one_in)
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return fails(path);
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        static int (*really)(const char *, int, ...);                                                                  \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = va_arg(more, mode_t);                                                                            \
        va_end(more);                                                                                                  \
        if (!really)                                                                                                   \
            really = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                                         \
        return control && control->one_in && fails(path) ? -1 : really(path, flags, mode);                             \
    }
#define OTHER(result, name, parameters, arguments)                                                                     \
    result name parameters {                                                                                           \
        static result(*really) parameters;                                                                             \
        if (!really)                                                                                                   \
            really = (result(*) parameters)dlsym(RTLD_NEXT, #name);                                                    \
        return fails_at(descriptor) ? -1 : really arguments;                                                           \
    }

OPEN(open)
OPEN(open64)
OTHER(ssize_t, write, (int descriptor, const void *data, size_t size), (descriptor, data, size))
OTHER(ssize_t, pwrite, (int descriptor, const void *data, size_t size, off_t at), (descriptor, data, size, at))
OTHER(ssize_t, pwrite64, (int descriptor, const void *data, size_t size, off64_t at), (descriptor, data, size, at))
OTHER(int, ftruncate, (int descriptor, off_t size), (descriptor, size))
OTHER(int, ftruncate64, (int descriptor, off64_t size), (descriptor, size))
OTHER(int, fsync, (int descriptor), (descriptor))
OTHER(int, fdatasync, (int descriptor), (descriptor))
