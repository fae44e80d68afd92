/* nvmlsim: a libnvidia-ml.so.1 that answers from a state directory instead of a driver.
 *
 * For what: the real, unmodified readers of NVML (gpustat, nvitop, our own probe) see simulated
 * GPUs, with nothing faked above the C interface. It answers only when asked to simulate: by
 * GPULEASE_SIMULATION in the environment, or by nvmlsimUse() in this process; otherwise nvmlInit
 * says "driver not loaded". It is not a model of a GPU: nothing computes, values are what the
 * state says. docs/reference/simulation.md describes the state files.
 *
 * Order: the state and its files, live processes, the way into each call with its faults, the
 * calls with an answer, the table of calls without one, and CUDA contexts (cudasim.c). One `cc` builds it.
 *
 * Every access to the state holds `lock`; a slow or hanging call waits without it.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15,
    ARGUMENT_VERSION_MISMATCH = 25
};

typedef unsigned long long u64;

/* ---- the state ---------------------------------------------------------------------------- */

#define MAXIMUM_GPUS 64
#define MAXIMUM_INSTANCES 7
#define TEXT 96
#define NONE (-1LL)

enum number {
    MEMORY_TOTAL, MEMORY_USED, MEMORY_RESERVED, UTILIZATION, MEMORY_UTILIZATION, TEMPERATURE, POWER,
    POWER_LIMIT, FAN, PERFORMANCE_STATE, DISPLAY_ACTIVE, MIG, LOST, COMPUTE_CAPABILITY,
    THROTTLING, COMPUTE_MODE, NUMBERS
};
static const struct { const char *key; long long absent; } number_keys[NUMBERS] = {
    {"memory_total", NONE}, {"memory_used", 0}, {"memory_reserved", 0}, {"utilization", 0},
    {"memory_utilization", 0}, {"temperature", NONE}, {"power", NONE}, {"power_limit", NONE},
    {"fan", NONE}, {"performance_state", NONE}, {"display_active", 0}, {"mig", NONE}, {"lost", 0},
    {"compute_capability", NONE}, {"throttling", 0}, {"compute_mode", 0},
};

enum text { NAME, UUID, PCI_BUS_ID, GROUP, TEXTS };
static const char *const text_keys[TEXTS] = {"name", "uuid", "pci_bus_id", "group"};

struct gpu { long long numbers[NUMBERS]; char texts[TEXTS][TEXT]; };

struct machine {
    unsigned gpu_count;
    char driver_version[TEXT], cuda_version[TEXT], hang[TEXT], middle[TEXT];
    int init_fault, slow, old, cuda_slow, cuda_fault;
    struct gpu gpus[MAXIMUM_GPUS];
};

/* What one process uses of one device. */
struct use { unsigned pid; u64 start_time; int graphics, gpu, instance; u64 memory; };

/* A handle is the address of one of these: [gpu][0] is the GPU, [gpu][1 + i] its MIG instance i. */
struct device { int gpu, instance; };
static struct device devices[MAXIMUM_GPUS][1 + MAXIMUM_INSTANCES];

/* A file or directory as last read. `certain` is 0 when it had changed so shortly before that a
 * second change could bear the same timestamp; it is then read again. */
struct stamp { dev_t device; ino_t inode; off_t size; struct timespec changed; int known, certain; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized; /* nvmlInit calls without their nvmlShutdown */
static char directory[PATH_MAX], chosen[PATH_MAX];
static struct machine machine;
static struct stamp machine_stamp, processes_stamp;
static struct use *uses;
static size_t use_count, use_capacity;

#define GRANULARITY_NANOSECONDS 50000000LL

static long long nanoseconds(struct timespec time) { return time.tv_sec * 1000000000LL + time.tv_nsec; }

static int unchanged(const char *path, struct stamp *stamp) {
    struct stat now;
    struct timespec clock;
    if (stat(path, &now) != 0) { stamp->known = 0; return 0; }
    if (stamp->known && stamp->certain && stamp->device == now.st_dev && stamp->inode == now.st_ino &&
        stamp->size == now.st_size && nanoseconds(stamp->changed) == nanoseconds(now.st_mtim)) return 1;
    clock_gettime(CLOCK_REALTIME, &clock);
    *stamp = (struct stamp){now.st_dev, now.st_ino, now.st_size, now.st_mtim, 1,
        llabs(nanoseconds(clock) - nanoseconds(now.st_mtim)) > GRANULARITY_NANOSECONDS};
    return 0;
}

static int is_none(const char *value) { return !*value || strcasecmp(value, "none") == 0; }

static void copy_text(char *to, const char *from) { snprintf(to, TEXT, "%s", from); }

static void set_gpu_value(struct gpu *gpu, const char *key, const char *value) {
    for (int i = 0; i < NUMBERS; i++)
        if (strcmp(key, number_keys[i].key) == 0) gpu->numbers[i] = is_none(value) ? NONE : atoll(value);
    for (int i = 0; i < TEXTS; i++)
        if (strcmp(key, text_keys[i]) == 0) copy_text(gpu->texts[i], is_none(value) ? "" : value);
    if (gpu->numbers[MIG] > MAXIMUM_INSTANCES) gpu->numbers[MIG] = MAXIMUM_INSTANCES;
}

static void set_value(struct machine *to, const char *key, const char *value) {
    unsigned index;
    int rest = 0;
    if (sscanf(key, "gpu.%u.%n", &index, &rest) == 1 && rest) {
        if (index < MAXIMUM_GPUS) set_gpu_value(&to->gpus[index], key + rest, value);
    } else if (strcmp(key, "gpu_count") == 0) {
        to->gpu_count = strtoul(value, NULL, 10);
        if (to->gpu_count > MAXIMUM_GPUS) to->gpu_count = MAXIMUM_GPUS;
    } else if (strcmp(key, "driver_version") == 0) copy_text(to->driver_version, is_none(value) ? "" : value);
    else if (strcmp(key, "cuda_version") == 0) copy_text(to->cuda_version, is_none(value) ? "" : value);
    else if (strcmp(key, "driver.old") == 0) to->old = atoi(value);
    else if (strcmp(key, "fault.init") == 0) to->init_fault = atoi(value);
    else if (strcmp(key, "cuda.slow") == 0) to->cuda_slow = atoi(value);
    else if (strcmp(key, "fault.cuda") == 0) to->cuda_fault = atoi(value);
    else if (strcmp(key, "fault.slow") == 0) to->slow = atoi(value);
    else if (strcmp(key, "fault.hang") == 0) copy_text(to->hang, is_none(value) || strcmp(value, "0") == 0 ? "" : value);
    else if (strcmp(key, "fault.middle") == 0) copy_text(to->middle, is_none(value) ? "" : value);
}

/* Calls `take` for each key=value line of the file; 0 when it cannot be read. */
static int read_lines(const char *path, void (*take)(void *, const char *, const char *), void *to) {
    char *line = NULL, *equals;
    size_t size = 0;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    while (getline(&line, &size, file) > 0) {
        line[strcspn(line, "\r\n")] = 0;
        if (line[0] == '#' || !(equals = strchr(line, '='))) continue;
        *equals = 0;
        take(to, line, equals + 1);
    }
    free(line);
    fclose(file);
    return 1;
}

static void take_machine_line(void *to, const char *key, const char *value) { set_value(to, key, value); }

static int refresh_machine(void) {
    static struct machine fresh;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/machine", directory);
    if (unchanged(path, &machine_stamp)) return SUCCESS;
    memset(&fresh, 0, sizeof fresh);
    for (int i = 0; i < MAXIMUM_GPUS; i++)
        for (int j = 0; j < NUMBERS; j++) fresh.gpus[i].numbers[j] = number_keys[j].absent;
    if (!read_lines(path, take_machine_line, &fresh) || !fresh.gpu_count) { machine_stamp.known = 0; return DRIVER_NOT_LOADED; }
    machine = fresh;
    return SUCCESS;
}

/* ---- live processes ----------------------------------------------------------------------- */

struct process { unsigned pid; u64 start_time; int graphics; size_t first; };

static void take_process_line(void *to, const char *key, const char *value) {
    struct process *process = to;
    struct use use = {process->pid, process->start_time, 0, 0, -1, 0};
    int rest = 0;
    if (strcmp(key, "type") == 0) { process->graphics = strcmp(value, "graphics") == 0; return; }
    if (sscanf(key, "gpu.%d:%d.memory%n", &use.gpu, &use.instance, &rest) != 2 || !rest || key[rest]) {
        use.instance = -1;
        rest = 0;
        if (sscanf(key, "gpu.%d.memory%n", &use.gpu, &rest) != 1 || !rest || key[rest]) return;
    }
    use.memory = is_none(value) ? ULLONG_MAX : strtoull(value, NULL, 10);
    if (use_count == use_capacity) {
        size_t capacity = use_capacity ? 2 * use_capacity : 64;
        struct use *grown = realloc(uses, capacity * sizeof *uses);
        if (!grown) return;
        uses = grown;
        use_capacity = capacity;
    }
    uses[use_count++] = use;
}

static int by_pid(const void *left, const void *right) {
    const struct use *a = left, *b = right;
    return a->pid < b->pid ? -1 : a->pid > b->pid;
}

static void read_process(const char *folder, const char *name) {
    struct process process = {0, 0, 0, use_count};
    char path[PATH_MAX + 512];
    int rest = 0;
    if (sscanf(name, "%u.%llu%n", &process.pid, &process.start_time, &rest) != 2 || name[rest]) return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    read_lines(path, take_process_line, &process);
    for (size_t i = process.first; i < use_count; i++) uses[i].graphics = process.graphics;
}

/* Files here are only ever added by rename and removed, so the folder's timestamp tells. */
static void refresh_processes(void) {
    char folder[PATH_MAX + 16];
    struct dirent *entry;
    DIR *stream;
    snprintf(folder, sizeof folder, "%s/processes", directory);
    if (unchanged(folder, &processes_stamp)) return;
    use_count = 0;
    if (!(stream = opendir(folder))) return;
    while ((entry = readdir(stream))) read_process(folder, entry->d_name);
    closedir(stream);
    if (use_count) qsort(uses, use_count, sizeof *uses, by_pid);
}

/* A pid with another start time is another process; a zombie holds no memory. */
static int alive(unsigned pid, u64 start_time) {
    char path[64], text[1024], state, *rest;
    u64 started;
    ssize_t length;
    int file;
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0) return 0;
    length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) return 0;
    text[length] = 0;
    if (!(rest = strrchr(text, ')'))) return 0;
    if (sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &state, &started) != 2) return 0;
    return state != 'Z' && state != 'X' && started == start_time;
}

static int on_device(const struct use *use, const struct device *device) {
    return use->gpu == device->gpu && (device->instance < 0 || use->instance == device->instance) &&
           alive(use->pid, use->start_time);
}

/* ---- the way into a call ------------------------------------------------------------------ */

static struct gpu *gpu; /* of the device that this call asks for, while `lock` is held */

static int is_device(const void *handle) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)devices;
    return offset < sizeof devices && offset % sizeof(struct device) == 0;
}

static int has_instances(void) { return gpu->numbers[MIG] > 0; }

static int matches_hang(const char *function) {
    return machine.hang[0] && (strcmp(machine.hang, "1") == 0 || strstr(function, machine.hang));
}

/* fault.middle=Name:CODE; a part of the name is enough. */
static int middle_fault(const char *function) {
    char name[TEXT];
    int code;
    if (sscanf(machine.middle, "%95[^:]:%d", name, &code) != 2) return SUCCESS;
    return strstr(function, name) ? code : SUCCESS;
}

/* Called and left with `lock` held; it is open while waiting. */
static void wait_milliseconds(int milliseconds) {
    struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    if (milliseconds <= 0) return;
    pthread_mutex_unlock(&lock);
    nanosleep(&time, NULL);
    pthread_mutex_lock(&lock);
}

#define HANGING_MILLISECONDS 20

/* Hangs until the fault is cleared, or the machine is gone; the code is that of reading it. */
static int wait_while_hanging(const char *function) {
    int code = SUCCESS;
    while (!code && matches_hang(function)) {
        wait_milliseconds(HANGING_MILLISECONDS);
        code = refresh_machine();
    }
    return code;
}

static int leave(int code) {
    pthread_mutex_unlock(&lock);
    return code;
}

/* For calls that ask no device. SUCCESS leaves `lock` held, for leave(). */
static int enter(const char *function) {
    int code;
    pthread_mutex_lock(&lock);
    if (!initialized) return leave(UNINITIALIZED);
    if ((code = refresh_machine()) || (code = wait_while_hanging(function))) return leave(code);
    return (code = middle_fault(function)) ? leave(code) : SUCCESS;
}

static int select_device(const struct device *device) {
    if ((unsigned)device->gpu >= machine.gpu_count) return GPU_IS_LOST;
    gpu = &machine.gpus[device->gpu];
    if (gpu->numbers[LOST] > 0) return GPU_IS_LOST;
    return device->instance < gpu->numbers[MIG] || device->instance < 0 ? SUCCESS : NOT_FOUND;
}

/* For calls on a device, or that look one up: as enter(), with `gpu` set. */
static int enter_device(const char *function, const struct device *device) {
    int code = enter(function);
    if (code) return code;
    wait_milliseconds(machine.slow);
    if (!is_device(device)) return leave(INVALID_ARGUMENT);
    return (code = select_device(device)) ? leave(code) : SUCCESS;
}

/* For calls that a MIG instance does not answer. */
static int enter_gpu(const char *function, const struct device *device) {
    int code = enter_device(function, device);
    if (code) return code;
    return device->instance >= 0 ? leave(NOT_SUPPORTED) : SUCCESS;
}

static int is_old(int oldest_with_it) { return machine.old > 0 && machine.old < oldest_with_it; }

static int put_text(char *to, unsigned length, const char *text) {
    if (!to) return INVALID_ARGUMENT;
    if (!*text) return NOT_SUPPORTED;
    if (strlen(text) >= length) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static int put_number(unsigned *to, long long value) {
    if (!to) return INVALID_ARGUMENT;
    if (value == NONE) return NOT_SUPPORTED;
    *to = (unsigned)value;
    return SUCCESS;
}

static int get_number(const char *function, const struct device *device, enum number key, unsigned *value) {
    int code = enter_gpu(function, device);
    return code ? code : leave(put_number(value, gpu->numbers[key]));
}

static int get_constant(const char *function, const struct device *device, unsigned constant, unsigned *value) {
    int code = enter_gpu(function, device);
    return code ? code : leave(put_number(value, constant));
}

/* ---- init, shutdown, system --------------------------------------------------------------- */

static void fill_devices(void) {
    for (int i = 0; i < MAXIMUM_GPUS; i++)
        for (int j = 0; j <= MAXIMUM_INSTANCES; j++) devices[i][j] = (struct device){i, j - 1};
}

/* Simulate from this directory in this process, whatever the environment says; "" ends that. */
void nvmlsimUse(const char *path) {
    pthread_mutex_lock(&lock);
    snprintf(chosen, sizeof chosen, "%s", path ? path : "");
    initialized = 0;
    machine_stamp.known = processes_stamp.known = 0;
    pthread_mutex_unlock(&lock);
}

/* The machine's directory as an absolute path, which stays true when the process changes its own. */
static int find_directory(char path[PATH_MAX]) {
    const char *named = chosen[0] ? chosen : getenv("GPULEASE_SIMULATION");
    char here[PATH_MAX] = "";
    if (!named || !*named || (*named != '/' && !getcwd(here, sizeof here))) return 0;
    return snprintf(path, PATH_MAX, "%s%s%s", here, *here ? "/" : "", named) < PATH_MAX;
}

int nvmlInitWithFlags(unsigned flags) {
    char path[PATH_MAX];
    int code;
    (void)flags;
    pthread_mutex_lock(&lock);
    if (!find_directory(path)) return leave(DRIVER_NOT_LOADED);
    if (strcmp(directory, path) != 0) machine_stamp.known = processes_stamp.known = 0;
    strcpy(directory, path);
    fill_devices();
    if ((code = refresh_machine()) || (code = wait_while_hanging("nvmlInitWithFlags"))) return leave(code);
    if (machine.init_fault) return leave(machine.init_fault);
    if ((code = middle_fault("nvmlInitWithFlags"))) return leave(code);
    initialized++;
    return leave(SUCCESS);
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    if (!initialized) return leave(UNINITIALIZED);
    initialized--;
    return leave(SUCCESS);
}

const char *nvmlErrorString(int code) {
    static const char *const words[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch", "In use by another client",
        "Insufficient Memory", "No data", "The requested vgpu operation is not available on target device",
        "Insufficient Resources", "Frequency Not Supported", "Argument Version Mismatch"};
    return code >= 0 && code < (int)(sizeof words / sizeof *words) ? words[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    int code = enter(__func__);
    return code ? code : leave(put_text(version, length, machine.driver_version));
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    char text[TEXT + 4];
    int code = enter(__func__);
    if (code) return code;
    snprintf(text, sizeof text, "%d.%s", atoi(machine.cuda_version), machine.driver_version);
    return leave(put_text(version, length, text));
}

static int cuda_version(const char *function, int *version) {
    int major = 0, minor = 0, code = enter(function);
    if (code) return code;
    if (!version) return leave(INVALID_ARGUMENT);
    if (sscanf(machine.cuda_version, "%d.%d", &major, &minor) < 1) return leave(NOT_SUPPORTED);
    *version = 1000 * major + 10 * minor;
    return leave(SUCCESS);
}
int nvmlSystemGetCudaDriverVersion(int *version) { return cuda_version(__func__, version); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuda_version(__func__, version); }

int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    char path[64], text[1024] = "";
    int file, code = enter(__func__);
    ssize_t size;
    if (code) return code;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    if ((file = open(path, O_RDONLY | O_CLOEXEC)) < 0) return leave(NOT_FOUND);
    size = read(file, text, sizeof text - 1);
    close(file);
    return leave(size <= 0 ? NOT_FOUND : put_text(name, length, text));
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = enter(__func__);
    return code ? code : leave(put_number(count, machine.gpu_count));
}
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* ---- handles ------------------------------------------------------------------------------ */

static void instance_uuid(char *uuid, const char *parent, int instance) {
    u64 high = 0xcbf29ce484222325ULL, low = 0x84222325cbf29ce4ULL;
    char text[TEXT + 16];
    snprintf(text, sizeof text, "%s:%d", parent, instance);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        high = (high ^ *c) * 0x100000001b3ULL;
        low = (low ^ *c) * 0x100000001b3ULL;
    }
    snprintf(uuid, TEXT, "MIG-%08x-%04x-%04x-%04x-%012llx", (unsigned)(high >> 32), (unsigned)(high >> 16) & 0xffff,
             (unsigned)high & 0xffff, (unsigned)(low >> 48), low & 0xffffffffffffULL);
}

static void device_uuid(char *uuid, const struct device *device) {
    const char *own = machine.gpus[device->gpu].texts[UUID];
    if (device->instance < 0) copy_text(uuid, own);
    else instance_uuid(uuid, own, device->instance);
}

/* Hands out the handle, or says that its GPU is lost. Called with `lock` held. */
static int give_handle(struct device *device, struct device **handle) {
    int code = select_device(device);
    if (!code) *handle = device;
    return leave(code);
}

static int enter_lookup(const char *function, const void *wanted, struct device **handle) {
    int code = enter(function);
    if (code) return code;
    wait_milliseconds(machine.slow);
    return wanted && handle ? SUCCESS : leave(INVALID_ARGUMENT);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **handle) {
    int code = enter_lookup(__func__, "", handle);
    if (code) return code;
    return index < machine.gpu_count ? give_handle(&devices[index][0], handle) : leave(INVALID_ARGUMENT);
}
int nvmlDeviceGetHandleByIndex(unsigned index, struct device **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

int nvmlDeviceGetHandleByUUID(const char *wanted, struct device **handle) {
    char uuid[TEXT];
    int code = enter_lookup(__func__, wanted, handle);
    if (code) return code;
    for (unsigned i = 0; i < machine.gpu_count; i++)
        for (int j = 0; j == 0 || j <= machine.gpus[i].numbers[MIG]; j++) {
            device_uuid(uuid, &devices[i][j]);
            if (*uuid && strcasecmp(uuid, wanted) == 0) return give_handle(&devices[i][j], handle);
        }
    return leave(NOT_FOUND);
}

struct bus { unsigned domain, bus, device; };

static int parse_bus(const char *text, struct bus *bus) {
    if (sscanf(text, "%x:%x:%x", &bus->domain, &bus->bus, &bus->device) == 3) return 1;
    bus->domain = 0;
    return sscanf(text, "%x:%x", &bus->bus, &bus->device) == 2;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, struct device **handle) {
    struct bus bus, own;
    int code = enter_lookup(__func__, wanted, handle);
    if (code) return code;
    if (!parse_bus(wanted, &bus)) return leave(INVALID_ARGUMENT);
    for (unsigned i = 0; i < machine.gpu_count; i++)
        if (parse_bus(machine.gpus[i].texts[PCI_BUS_ID], &own) && memcmp(&bus, &own, sizeof bus) == 0)
            return give_handle(&devices[i][0], handle);
    return leave(NOT_FOUND);
}
int nvmlDeviceGetHandleByPciBusId(const char *wanted, struct device **handle) { return nvmlDeviceGetHandleByPciBusId_v2(wanted, handle); }

/* ---- who a device is ---------------------------------------------------------------------- */

int nvmlDeviceGetIndex(struct device *device, unsigned *index) {
    int code = enter_device(__func__, device);
    return code ? code : leave(put_number(index, device->instance < 0 ? device->gpu : device->instance));
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor) {
    int code = enter_gpu(__func__, device);
    return code ? code : leave(put_number(minor, device->gpu));
}

static u64 instance_memory(void) { return (u64)gpu->numbers[MEMORY_TOTAL] / (u64)gpu->numbers[MIG]; }

int nvmlDeviceGetName(struct device *device, char *name, unsigned length) {
    char text[TEXT + 64];
    int code = enter_device(__func__, device);
    if (code) return code;
    if (device->instance < 0) return leave(put_text(name, length, gpu->texts[NAME]));
    snprintf(text, sizeof text, "%s MIG %lldg.%llugb", gpu->texts[NAME], MAXIMUM_INSTANCES / gpu->numbers[MIG],
             instance_memory() >> 30);
    return leave(put_text(name, length, text));
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length) {
    char text[TEXT];
    int code = enter_device(__func__, device);
    if (code) return code;
    device_uuid(text, device);
    return leave(put_text(uuid, length, text));
}

int nvmlDeviceGetSerial(struct device *device, char *serial, unsigned length) {
    char text[TEXT];
    int code = enter_gpu(__func__, device);
    if (code) return code;
    snprintf(text, sizeof text, "13200%08d", device->gpu);
    return leave(put_text(serial, length, text));
}

struct pci_v2 { char bus_id[16]; unsigned domain, bus, device, device_id, subsystem_id, reserved[4]; };
struct pci_v3 { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; };

static int get_pci(const char *function, struct device *device, struct pci_v3 *to, size_t size) {
    struct pci_v3 pci = {0};
    struct bus bus;
    int code = enter_gpu(function, device);
    if (code) return code;
    if (!to) return leave(INVALID_ARGUMENT);
    if (!parse_bus(gpu->texts[PCI_BUS_ID], &bus)) return leave(NOT_SUPPORTED);
    pci.domain = bus.domain, pci.bus = bus.bus, pci.device = bus.device;
    snprintf(pci.legacy, sizeof pci.legacy, "%04X:%02X:%02X.0", bus.domain & 0xffff, bus.bus & 0xff, bus.device & 0xff);
    if (size == sizeof pci)
        snprintf(pci.bus_id, sizeof pci.bus_id, "%08X:%02X:%02X.0", bus.domain, bus.bus & 0xff, bus.device & 0xff);
    memcpy(to, &pci, size);
    return leave(SUCCESS);
}
int nvmlDeviceGetPciInfo_v3(struct device *device, void *pci) { return get_pci(__func__, device, pci, sizeof(struct pci_v3)); }
int nvmlDeviceGetPciInfo_v2(struct device *device, void *pci) { return get_pci(__func__, device, pci, sizeof(struct pci_v2)); }
int nvmlDeviceGetPciInfo(struct device *device, void *pci) { return nvmlDeviceGetPciInfo_v2(device, pci); }

int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
    int code = enter_device(__func__, device);
    if (code) return code;
    if (!major || !minor) return leave(INVALID_ARGUMENT);
    if (gpu->numbers[COMPUTE_CAPABILITY] == NONE) return leave(NOT_SUPPORTED);
    *major = gpu->numbers[COMPUTE_CAPABILITY] / 10;
    *minor = gpu->numbers[COMPUTE_CAPABILITY] % 10;
    return leave(SUCCESS);
}

static int is_near(const struct device *one, const struct device *other) {
    const char *group = machine.gpus[one->gpu].texts[GROUP];
    return *group && strcmp(group, machine.gpus[other->gpu].texts[GROUP]) == 0;
}

static int compare(const char *function, struct device *one, struct device *other, unsigned near, unsigned far, unsigned *to) {
    int code = enter_gpu(function, one);
    if (code) return code;
    if (!is_device(other) || !to) return leave(INVALID_ARGUMENT);
    if ((code = select_device(other))) return leave(code);
    *to = is_near(one, other) ? near : far;
    return leave(SUCCESS);
}
/* Same PCIe switch, or only the system between them. */
int nvmlDeviceGetTopologyCommonAncestor(struct device *one, struct device *other, unsigned *level) {
    return compare(__func__, one, other, 10, 50, level);
}
int nvmlDeviceGetP2PStatus(struct device *one, struct device *other, unsigned capability, unsigned *status) {
    (void)capability;
    return compare(__func__, one, other, 0, 5, status);
}

/* ---- memory and processes ----------------------------------------------------------------- */

struct memory_v1 { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };

static u64 at_most(u64 value, u64 limit) { return value < limit ? value : limit; }

/* Called with `lock` held and `gpu` set. */
static int measure_memory(const struct device *device, struct memory_v2 *memory) {
    u64 parts = device->instance < 0 ? 1 : (u64)gpu->numbers[MIG];
    if (gpu->numbers[MEMORY_TOTAL] == NONE || gpu->numbers[MEMORY_USED] == NONE) return NOT_SUPPORTED;
    refresh_processes();
    memory->total = (u64)gpu->numbers[MEMORY_TOTAL] / parts;
    memory->reserved = gpu->numbers[MEMORY_RESERVED] == NONE ? 0 : (u64)gpu->numbers[MEMORY_RESERVED] / parts;
    memory->reserved = at_most(memory->reserved, memory->total);
    memory->used = (u64)gpu->numbers[MEMORY_USED] / parts;
    for (size_t i = 0; i < use_count; i++)
        if (uses[i].memory != ULLONG_MAX && on_device(&uses[i], device)) memory->used += uses[i].memory;
    memory->used = at_most(memory->used, memory->total - memory->reserved);
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
    int code = enter_device(__func__, device);
    if (code) return code;
    if (is_old(3)) return leave(FUNCTION_NOT_FOUND);
    if (!memory) return leave(INVALID_ARGUMENT);
    if (memory->version != 0x02000028) return leave(ARGUMENT_VERSION_MISMATCH);
    return leave(measure_memory(device, memory));
}

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory_v1 *memory) {
    struct memory_v2 all;
    int code = enter_device(__func__, device);
    if (code) return code;
    if (!memory) return leave(INVALID_ARGUMENT);
    if ((code = measure_memory(device, &all))) return leave(code);
    *memory = (struct memory_v1){all.total, all.free, all.used + all.reserved};
    return leave(SUCCESS);
}

int nvmlDeviceGetBAR1MemoryInfo(struct device *device, struct memory_v1 *memory) {
    int code = enter_device(__func__, device);
    if (code) return code;
    if (!memory) return leave(INVALID_ARGUMENT);
    *memory = (struct memory_v1){256ULL << 20, 255ULL << 20, 1ULL << 20};
    return leave(SUCCESS);
}

enum kind { COMPUTE, GRAPHICS };
struct process_v1 { unsigned pid; u64 memory; };
struct process_v2 { unsigned pid; u64 memory; unsigned gpu_instance, compute_instance; };

static void put_process(void *to, size_t size, const struct use *use) {
    unsigned instance = has_instances() && use->instance >= 0 ? (unsigned)use->instance + 1 : UINT_MAX;
    struct process_v2 process = {use->pid, use->memory, instance, instance == UINT_MAX ? UINT_MAX : 0};
    memcpy(to, &process, size);
}

static int running(const char *function, int version, struct device *device, enum kind kind, unsigned *count, char *to) {
    size_t size = version == 1 ? sizeof(struct process_v1) : sizeof(struct process_v2);
    unsigned found = 0, room;
    int code = enter_device(function, device);
    if (code) return code;
    if (is_old(version)) return leave(FUNCTION_NOT_FOUND);
    if (!count) return leave(INVALID_ARGUMENT);
    room = to ? *count : 0;
    refresh_processes();
    for (size_t i = 0; i < use_count; i++) {
        if (uses[i].graphics != (kind == GRAPHICS) || !on_device(&uses[i], device)) continue;
        if (found < room) put_process(to + found * size, size, &uses[i]);
        found++;
    }
    *count = found;
    return leave(found > room ? INSUFFICIENT_SIZE : SUCCESS);
}
#define RUNNING(name, version, kind) \
    int name(struct device *device, unsigned *count, void *to) { return running(__func__, version, device, kind, count, to); }
RUNNING(nvmlDeviceGetComputeRunningProcesses, 1, COMPUTE)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, 2, COMPUTE)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, 3, COMPUTE)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, 1, GRAPHICS)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, GRAPHICS)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, 3, GRAPHICS)

struct process_sample { unsigned pid; u64 time; unsigned sm, memory, encoder, decoder; };

static unsigned share(enum number key, unsigned processes) {
    return gpu->numbers[key] == NONE ? 0 : (unsigned)gpu->numbers[key] / processes;
}

/* The GPU's utilization, shared evenly by its processes. */
int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *to, unsigned *count, u64 since) {
    unsigned found = 0, room;
    struct timespec now;
    int code = enter_gpu(__func__, device);
    (void)since;
    if (code) return code;
    if (!count) return leave(INVALID_ARGUMENT);
    if (has_instances() || gpu->numbers[UTILIZATION] == NONE) return leave(NOT_SUPPORTED);
    room = to ? *count : 0;
    clock_gettime(CLOCK_REALTIME, &now);
    refresh_processes();
    for (size_t i = 0; i < use_count; i++) {
        if (!on_device(&uses[i], device)) continue;
        if (found < room) to[found] = (struct process_sample){uses[i].pid, (u64)nanoseconds(now) / 1000, 0, 0, 0, 0};
        found++;
    }
    *count = found;
    if (!found) return leave(NOT_FOUND);
    if (found > room) return leave(INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < found; i++)
        to[i].sm = share(UTILIZATION, found), to[i].memory = share(MEMORY_UTILIZATION, found);
    return leave(SUCCESS);
}

/* ---- what a device does ------------------------------------------------------------------- */

struct utilization { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates) {
    int code = enter_gpu(__func__, device);
    if (code) return code;
    if (!rates) return leave(INVALID_ARGUMENT);
    if (has_instances() || gpu->numbers[UTILIZATION] == NONE) return leave(NOT_SUPPORTED);
    rates->gpu = (unsigned)gpu->numbers[UTILIZATION];
    rates->memory = share(MEMORY_UTILIZATION, 1);
    return leave(SUCCESS);
}

static int engine(const char *function, struct device *device, unsigned *percent, unsigned *period) {
    int code = enter_gpu(function, device);
    if (code) return code;
    if (!percent || !period) return leave(INVALID_ARGUMENT);
    if (has_instances()) return leave(NOT_SUPPORTED);
    *percent = 0;
    *period = 167000;
    return leave(SUCCESS);
}
int nvmlDeviceGetEncoderUtilization(struct device *d, unsigned *percent, unsigned *period) { return engine(__func__, d, percent, period); }
int nvmlDeviceGetDecoderUtilization(struct device *d, unsigned *percent, unsigned *period) { return engine(__func__, d, percent, period); }

struct temperature { unsigned version, sensor; int temperature; };

int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *to) {
    int code = enter_gpu(__func__, device);
    if (code) return code;
    if (is_old(3)) return leave(FUNCTION_NOT_FOUND);
    if (!to) return leave(INVALID_ARGUMENT);
    if (to->version != 0x0100000C) return leave(ARGUMENT_VERSION_MISMATCH);
    return leave(put_number((unsigned *)&to->temperature, gpu->numbers[TEMPERATURE]));
}

#define NUMBER(name, key) \
    int name(struct device *device, unsigned *value) { return get_number(__func__, device, key, value); }
#define NUMBER_OF(name, key) \
    int name(struct device *device, unsigned which, unsigned *value) { (void)which; return get_number(__func__, device, key, value); }
#define CONSTANT(name, constant) \
    int name(struct device *device, unsigned *value) { return get_constant(__func__, device, constant, value); }
#define CONSTANT_OF(name, constant) \
    int name(struct device *device, unsigned which, unsigned *value) { (void)which; return get_constant(__func__, device, constant, value); }

NUMBER_OF(nvmlDeviceGetTemperature, TEMPERATURE)
NUMBER(nvmlDeviceGetFanSpeed, FAN)
NUMBER_OF(nvmlDeviceGetFanSpeed_v2, FAN)
NUMBER(nvmlDeviceGetPowerUsage, POWER)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, POWER_LIMIT)
NUMBER(nvmlDeviceGetPowerManagementLimit, POWER_LIMIT)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, POWER_LIMIT)
NUMBER(nvmlDeviceGetPerformanceState, PERFORMANCE_STATE)
NUMBER(nvmlDeviceGetPowerState, PERFORMANCE_STATE)
NUMBER(nvmlDeviceGetDisplayActive, DISPLAY_ACTIVE)
NUMBER(nvmlDeviceGetDisplayMode, DISPLAY_ACTIVE)
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetPowerManagementMode, 1)
NUMBER(nvmlDeviceGetComputeMode, COMPUTE_MODE)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 4)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 4)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
CONSTANT_OF(nvmlDeviceGetPcieThroughput, 0)

/* Clock types: graphics, SM, memory, video. */
static int clock_of(const char *function, struct device *device, unsigned type, unsigned memory, unsigned other, unsigned *to) {
    return type > 3 ? INVALID_ARGUMENT : get_constant(function, device, type == 2 ? memory : other, to);
}
int nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *clock) { return clock_of(__func__, device, type, 1215, 210, clock); }
int nvmlDeviceGetMaxClockInfo(struct device *device, unsigned type, unsigned *clock) { return clock_of(__func__, device, type, 1215, 1410, clock); }

static int clock_reasons(const char *function, struct device *device, u64 *reasons) {
    int code = enter_gpu(function, device);
    if (code) return code;
    if (!reasons) return leave(INVALID_ARGUMENT);
    if (gpu->numbers[THROTTLING] == NONE) return leave(NOT_SUPPORTED);
    *reasons = (u64)gpu->numbers[THROTTLING] | (gpu->numbers[UTILIZATION] > 0 ? 0 : 1); /* 1: the GPU is idle */
    return leave(SUCCESS);
}
int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, u64 *reasons) { return clock_reasons(__func__, device, reasons); }
int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, u64 *reasons) { return clock_reasons(__func__, device, reasons); }

/* ---- MIG ---------------------------------------------------------------------------------- */

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
    int code = enter_gpu(__func__, device);
    if (code) return code;
    if (!current || !pending) return leave(INVALID_ARGUMENT);
    if (gpu->numbers[MIG] == NONE) return leave(NOT_SUPPORTED);
    *current = *pending = (unsigned)has_instances();
    return leave(SUCCESS);
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
    int code = enter_gpu(__func__, device);
    return code ? code : leave(put_number(count, gpu->numbers[MIG] == NONE ? 0 : MAXIMUM_INSTANCES));
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **handle) {
    int code = enter_gpu(__func__, device);
    if (code) return code;
    if (!handle) return leave(INVALID_ARGUMENT);
    if (gpu->numbers[MIG] == NONE) return leave(NOT_SUPPORTED);
    if (index >= MAXIMUM_INSTANCES || index >= gpu->numbers[MIG]) return leave(NOT_FOUND);
    *handle = &devices[device->gpu][1 + index];
    return leave(SUCCESS);
}

int nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *is_instance) {
    int code = enter_device(__func__, device);
    return code ? code : leave(put_number(is_instance, device->instance >= 0));
}

static int instance_value(const char *function, struct device *device, unsigned value, unsigned *to) {
    int code = enter_device(function, device);
    if (code) return code;
    return leave(device->instance < 0 ? NOT_SUPPORTED : put_number(to, value));
}
int nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id) {
    return instance_value(__func__, device, is_device(device) ? (unsigned)device->instance + 1 : 0, id);
}
int nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id) { return instance_value(__func__, device, 0, id); }

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *device, struct device **parent) {
    int code = enter_device(__func__, device);
    if (code) return code;
    if (device->instance < 0 || !parent) return leave(INVALID_ARGUMENT);
    *parent = &devices[device->gpu][0];
    return leave(SUCCESS);
}

struct attributes { unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices; u64 megabytes; };

int nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *to) {
    unsigned slices;
    int code = enter_device(__func__, device);
    if (code) return code;
    if (!to) return leave(INVALID_ARGUMENT);
    if (device->instance < 0 || gpu->numbers[MEMORY_TOTAL] == NONE) return leave(NOT_SUPPORTED);
    slices = MAXIMUM_INSTANCES / (unsigned)gpu->numbers[MIG];
    *to = (struct attributes){14 * slices, 1, 0, 0, 0, 0, slices, slices, instance_memory() >> 20};
    return leave(SUCCESS);
}

/* ---- calls without an answer -------------------------------------------------------------- */

/* The first argument of most is a device, which may be lost; for the others it is no handle. */
static int unanswered(const char *function, const void *first) {
    int code = enter(function);
    if (code) return code;
    if (is_device(first) && (code = select_device(first))) return leave(code);
    return leave(NOT_SUPPORTED);
}

/* Every other symbol that nvidia-ml-py 13 looks up: without it some readers print a traceback. */
#define N(name) int nvml##name(void *first); int nvml##name(void *first) { return unanswered(__func__, first); }
N(ComputeInstanceDestroy) N(ComputeInstanceGetInfo_v2) N(DeviceClearAccountingPids) N(DeviceClearCpuAffinity)
N(DeviceClearEccErrorCounts) N(DeviceClearFieldValues) N(DeviceCreateGpuInstance)
N(DeviceCreateGpuInstanceWithPlacement) N(DeviceDiscoverGpus) N(DeviceFreezeNvLinkUtilizationCounter)
N(DeviceGetAPIRestriction) N(DeviceGetAccountingBufferSize) N(DeviceGetAccountingMode) N(DeviceGetAccountingPids)
N(DeviceGetAccountingStats) N(DeviceGetAccountingStats_v2) N(DeviceGetActiveVgpus) N(DeviceGetAdaptiveClockInfoStatus)
N(DeviceGetAdaptiveTgpModeInfo_v1) N(DeviceGetAddressingMode) N(DeviceGetApplicationsClock) N(DeviceGetArchitecture)
N(DeviceGetAutoBoostedClocksEnabled) N(DeviceGetBBXTimeData_v1) N(DeviceGetBankRemapperStatus_v1) N(DeviceGetBoardId)
N(DeviceGetBoardPartNumber) N(DeviceGetBrand) N(DeviceGetBridgeChipInfo) N(DeviceGetBusType) N(DeviceGetC2cModeInfoV)
N(DeviceGetCapabilities) N(DeviceGetClkMonStatus) N(DeviceGetClock) N(DeviceGetClockOffsets)
N(DeviceGetConfComputeGpuAttestationReport) N(DeviceGetConfComputeGpuCertificate) N(DeviceGetConfComputeMemSizeInfo)
N(DeviceGetConfComputeProtectedMemoryUsage) N(DeviceGetCoolerInfo) N(DeviceGetCpuAffinity)
N(DeviceGetCpuAffinityWithinScope) N(DeviceGetCreatableVgpus) N(DeviceGetCurrentClockFreqs)
N(DeviceGetDefaultApplicationsClock) N(DeviceGetDefaultEccMode) N(DeviceGetDetailedEccErrors)
N(DeviceGetDramEncryptionMode) N(DeviceGetDriverModel) N(DeviceGetDriverModel_v2) N(DeviceGetDynamicPstatesInfo)
N(DeviceGetEccMode) N(DeviceGetEncoderCapacity) N(DeviceGetEncoderSessions) N(DeviceGetEncoderStats)
N(DeviceGetFBCSessions) N(DeviceGetFBCStats) N(DeviceGetFanControlPolicy_v2) N(DeviceGetFanSpeedRPM)
N(DeviceGetFieldValues) N(DeviceGetGpcClkMinMaxVfOffset) N(DeviceGetGpcClkVfOffset) N(DeviceGetGpuFabricInfo)
N(DeviceGetGpuFabricInfoV) N(DeviceGetGpuFabricInfo_v4) N(DeviceGetGpuInstanceById)
N(DeviceGetGpuInstancePossiblePlacements_v2) N(DeviceGetGpuInstanceProfileInfo)
N(DeviceGetGpuInstanceProfileInfoByIdV) N(DeviceGetGpuInstanceProfileInfoV) N(DeviceGetGpuInstanceRemainingCapacity)
N(DeviceGetGpuInstances) N(DeviceGetGpuMaxPcieLinkGeneration) N(DeviceGetGpuOperationMode)
N(DeviceGetGridLicensableFeatures_v4) N(DeviceGetGspFirmwareMode) N(DeviceGetGspFirmwareVersion)
N(DeviceGetHandleBySerial) N(DeviceGetHandleByUUIDV) N(DeviceGetHostVgpuMode) N(DeviceGetHostname_v1)
N(DeviceGetInforomConfigurationChecksum) N(DeviceGetInforomImageVersion) N(DeviceGetInforomVersion) N(DeviceGetIrqNum)
N(DeviceGetJpgUtilization) N(DeviceGetLastBBXFlushTime) N(DeviceGetMPSComputeRunningProcesses_v2)
N(DeviceGetMPSComputeRunningProcesses_v3) N(DeviceGetMarginTemperature) N(DeviceGetMaxCustomerBoostClock)
N(DeviceGetMemClkMinMaxVfOffset) N(DeviceGetMemClkVfOffset) N(DeviceGetMemoryAffinity) N(DeviceGetMemoryBusWidth)
N(DeviceGetMemoryErrorCounter) N(DeviceGetMemoryLimits_v1) N(DeviceGetMinMaxClockOfPState) N(DeviceGetMinMaxFanSpeed)
N(DeviceGetModuleId) N(DeviceGetMultiGpuBoard) N(DeviceGetNumFans) N(DeviceGetNumGpuCores) N(DeviceGetNumaNodeId)
N(DeviceGetNvLinkCapability) N(DeviceGetNvLinkErrorCounter) N(DeviceGetNvLinkInfo) N(DeviceGetNvLinkRemoteDeviceType)
N(DeviceGetNvLinkRemotePciInfo_v2) N(DeviceGetNvLinkState) N(DeviceGetNvLinkTelemetrySamples_v1)
N(DeviceGetNvLinkUtilizationControl) N(DeviceGetNvLinkUtilizationCounter) N(DeviceGetNvLinkVersion)
N(DeviceGetNvlinkBwMode) N(DeviceGetNvlinkSupportedBwModes) N(DeviceGetOfaUtilization) N(DeviceGetPciInfoExt)
N(DeviceGetPcieLinkMaxSpeed) N(DeviceGetPcieReplayCounter) N(DeviceGetPcieSpeed) N(DeviceGetPdi)
N(DeviceGetPerformanceModes) N(DeviceGetPgpuMetadataString) N(DeviceGetPlatformInfo)
N(DeviceGetPowerManagementLimitConstraints) N(DeviceGetPowerMizerMode_v1) N(DeviceGetPowerSource)
N(DeviceGetProcessesUtilizationInfo) N(DeviceGetRemappedRows) N(DeviceGetRemappedRows_v2) N(DeviceGetRepairStatus)
N(DeviceGetRetiredPages) N(DeviceGetRetiredPagesPendingStatus) N(DeviceGetRetiredPages_v2)
N(DeviceGetRowRemapperHistogram) N(DeviceGetRunningProcessDetailList) N(DeviceGetSamples)
N(DeviceGetSramEccErrorStatus) N(DeviceGetSramUniqueUncorrectedEccErrorCounts) N(DeviceGetSupportedClocksEventReasons)
N(DeviceGetSupportedClocksThrottleReasons) N(DeviceGetSupportedEventTypes) N(DeviceGetSupportedGraphicsClocks)
N(DeviceGetSupportedMemoryClocks) N(DeviceGetSupportedPerformanceStates) N(DeviceGetSupportedVgpus)
N(DeviceGetTargetFanSpeed) N(DeviceGetTemperatureThreshold) N(DeviceGetThermalSettings)
N(DeviceGetTopologyNearestGpus) N(DeviceGetTotalEccErrors) N(DeviceGetTotalEnergyConsumption)
N(DeviceGetUnrepairableMemoryFlag_v1) N(DeviceGetVbiosVersion) N(DeviceGetVgpuCapabilities)
N(DeviceGetVgpuHeterogeneousMode) N(DeviceGetVgpuInstancesUtilizationInfo) N(DeviceGetVgpuMetadata)
N(DeviceGetVgpuProcessUtilization) N(DeviceGetVgpuProcessesUtilizationInfo) N(DeviceGetVgpuSchedulerCapabilities)
N(DeviceGetVgpuSchedulerLog) N(DeviceGetVgpuSchedulerLog_v2) N(DeviceGetVgpuSchedulerState)
N(DeviceGetVgpuSchedulerState_v2) N(DeviceGetVgpuTypeCreatablePlacements) N(DeviceGetVgpuTypeSupportedPlacements)
N(DeviceGetVgpuUtilization) N(DeviceGetViolationStatus) N(DeviceGetVirtualizationMode) N(DeviceModifyDrainState)
N(DeviceOnSameBoard) N(DevicePerfMetricsGetSamples_v1) N(DevicePowerSmoothingActivatePresetProfile)
N(DevicePowerSmoothingSetState) N(DevicePowerSmoothingUpdatePresetProfileParam) N(DeviceQueryDrainState)
N(DeviceReadPRMCounters_v1) N(DeviceReadWritePRM_v1) N(DeviceRegisterEvents) N(DeviceRemoveGpu)
N(DeviceResetApplicationsClocks) N(DeviceResetGpuLockedClocks) N(DeviceResetMemoryLockedClocks)
N(DeviceResetNvLinkErrorCounters) N(DeviceResetNvLinkUtilizationCounter) N(DeviceSetAPIRestriction)
N(DeviceSetAccountingMode) N(DeviceSetAdaptiveTgpMode_v1) N(DeviceSetApplicationsClocks)
N(DeviceSetAutoBoostedClocksEnabled) N(DeviceSetClockOffsets) N(DeviceSetComputeMode)
N(DeviceSetConfComputeUnprotectedMemSize) N(DeviceSetCpuAffinity) N(DeviceSetDefaultAutoBoostedClocksEnabled)
N(DeviceSetDefaultFanSpeed_v2) N(DeviceSetDramEncryptionMode) N(DeviceSetDriverModel) N(DeviceSetEccMode)
N(DeviceSetFanControlPolicy) N(DeviceSetFanSpeed_v2) N(DeviceSetGpcClkVfOffset) N(DeviceSetGpuLockedClocks)
N(DeviceSetGpuOperationMode) N(DeviceSetHostname_v1) N(DeviceSetMemClkVfOffset) N(DeviceSetMemoryLimits_v1)
N(DeviceSetMemoryLockedClocks) N(DeviceSetMigMode) N(DeviceSetNvLinkDeviceLowPowerThreshold)
N(DeviceSetNvLinkUtilizationControl) N(DeviceSetNvlinkBwMode) N(DeviceSetNvlinkBwModeAsync_v1)
N(DeviceSetPersistenceMode) N(DeviceSetPowerManagementLimit) N(DeviceSetPowerManagementLimit_v2)
N(DeviceSetPowerMizerMode_v1) N(DeviceSetRusdSettings_v1) N(DeviceSetTemperatureThreshold)
N(DeviceSetVgpuCapabilities) N(DeviceSetVgpuHeterogeneousMode) N(DeviceSetVgpuSchedulerState)
N(DeviceSetVgpuSchedulerState_v2) N(DeviceSetVirtualizationMode) N(DeviceValidateInforom) N(DeviceVgpuForceGspUnload)
N(DeviceWorkloadPowerProfileClearRequestedProfiles) N(DeviceWorkloadPowerProfileGetCurrentProfiles)
N(DeviceWorkloadPowerProfileGetProfilesInfo) N(DeviceWorkloadPowerProfileSetRequestedProfiles)
N(DeviceWorkloadPowerProfileUpdateProfiles_v1) N(EventSetCreate) N(EventSetFree) N(EventSetGetContextCount_v1)
N(EventSetGetContextData_v1) N(EventSetGetContextInfo_v1) N(EventSetGetGpuOperationalEventContextLegacyXid_v1)
N(EventSetRegisterGpuOperationalEvents_v1) N(EventSetWait_v2) N(EventSetWait_v3) N(GetExcludedDeviceCount)
N(GetExcludedDeviceInfoByIndex) N(GetVgpuCompatibility) N(GetVgpuDriverCapabilities) N(GetVgpuVersion)
N(GpmMetricsGet) N(GpmMigSampleGet) N(GpmQueryDeviceSupport) N(GpmQueryIfStreamingEnabled) N(GpmSampleAlloc)
N(GpmSampleFree) N(GpmSampleGet) N(GpmSetStreamingEnabled) N(GpuInstanceCreateComputeInstance)
N(GpuInstanceCreateComputeInstanceWithPlacement) N(GpuInstanceDestroy) N(GpuInstanceGetActiveVgpus)
N(GpuInstanceGetComputeInstanceById) N(GpuInstanceGetComputeInstancePossiblePlacements)
N(GpuInstanceGetComputeInstanceProfileInfo) N(GpuInstanceGetComputeInstanceProfileInfoV)
N(GpuInstanceGetComputeInstanceRemainingCapacity) N(GpuInstanceGetComputeInstances) N(GpuInstanceGetCreatableVgpus)
N(GpuInstanceGetInfo) N(GpuInstanceGetVgpuHeterogeneousMode) N(GpuInstanceGetVgpuSchedulerLog)
N(GpuInstanceGetVgpuSchedulerLog_v2) N(GpuInstanceGetVgpuSchedulerState) N(GpuInstanceGetVgpuSchedulerState_v2)
N(GpuInstanceGetVgpuTypeCreatablePlacements) N(GpuInstanceSetVgpuHeterogeneousMode)
N(GpuInstanceSetVgpuSchedulerState) N(GpuInstanceSetVgpuSchedulerState_v2) N(SetVgpuVersion) N(SystemEventSetCreate)
N(SystemEventSetFree) N(SystemEventSetWait) N(SystemGetCPER_v1) N(SystemGetConfComputeCapabilities)
N(SystemGetConfComputeGpusReadyState) N(SystemGetConfComputeKeyRotationThresholdInfo) N(SystemGetConfComputeSettings)
N(SystemGetConfComputeState) N(SystemGetDriverBranch) N(SystemGetHicVersion) N(SystemGetNvlinkBwMode)
N(SystemGetTopologyGpuSet) N(SystemRegisterEvents) N(SystemSetConfComputeGpusReadyState)
N(SystemSetConfComputeKeyRotationThresholdInfo) N(SystemSetNvlinkBwMode) N(UnitGetCount) N(UnitGetDevices)
N(UnitGetFanSpeedInfo) N(UnitGetHandleByIndex) N(UnitGetLedState) N(UnitGetPsuInfo) N(UnitGetTemperature)
N(UnitGetUnitInfo) N(UnitSetLedState) N(VgpuInstanceClearAccountingPids) N(VgpuInstanceGetAccountingMode)
N(VgpuInstanceGetAccountingPids) N(VgpuInstanceGetAccountingStats) N(VgpuInstanceGetEccMode)
N(VgpuInstanceGetEncoderCapacity) N(VgpuInstanceGetEncoderSessions) N(VgpuInstanceGetEncoderStats)
N(VgpuInstanceGetFBCSessions) N(VgpuInstanceGetFBCStats) N(VgpuInstanceGetFbUsage) N(VgpuInstanceGetFrameRateLimit)
N(VgpuInstanceGetGpuInstanceId) N(VgpuInstanceGetGpuPciId) N(VgpuInstanceGetLicenseInfo_v2)
N(VgpuInstanceGetLicenseStatus) N(VgpuInstanceGetMdevUUID) N(VgpuInstanceGetMetadata) N(VgpuInstanceGetPlacementId)
N(VgpuInstanceGetRuntimeStateSize) N(VgpuInstanceGetType) N(VgpuInstanceGetUUID) N(VgpuInstanceGetVmDriverVersion)
N(VgpuInstanceGetVmID) N(VgpuInstanceSetEncoderCapacity) N(VgpuTypeGetBAR1Info) N(VgpuTypeGetCapabilities)
N(VgpuTypeGetClass) N(VgpuTypeGetDeviceID) N(VgpuTypeGetFbReservation) N(VgpuTypeGetFrameRateLimit)
N(VgpuTypeGetFramebufferSize) N(VgpuTypeGetGpuInstanceProfileId) N(VgpuTypeGetGspHeapSize) N(VgpuTypeGetLicense)
N(VgpuTypeGetMaxInstances) N(VgpuTypeGetMaxInstancesPerGpuInstance) N(VgpuTypeGetMaxInstancesPerVm) N(VgpuTypeGetName)
N(VgpuTypeGetNumDisplayHeads) N(VgpuTypeGetResolution)

/* ---- libcuda.so.1 ------------------------------------------------------------------------- */

#include "cudasim.c"
