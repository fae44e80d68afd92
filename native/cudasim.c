/* cudasim: the few calls of libcuda.so.1 that make a context on a simulated GPU.
 *
 * Part of nvmlsim.c, which includes it: one library serves under both names and reads one state.
 * A context makes its process appear on the device as a real one does, until it is given back or
 * the process ends. Nothing computes. `cuda.slow` and `fault.cuda` say how long a context takes
 * and with which error it fails; `fault.hang` holds for these calls too.
 */

enum {
    CUDA_INVALID_VALUE = 1, CUDA_OUT_OF_MEMORY = 2, CUDA_NOT_INITIALIZED = 3, CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101, CUDA_DEVICE_UNAVAILABLE = 46
};
enum { ATTRIBUTE_COMPUTE_MODE = 20, EXCLUSIVE_PROCESS = 3, PROHIBITED = 2 };

#define CONTEXT_MEMORY (256ULL << 20)
#define MAXIMUM_VISIBLE (MAXIMUM_GPUS * MAXIMUM_INSTANCES)

static struct device visible[MAXIMUM_VISIBLE];
static int visible_count = -1; /* cuInit was not called */
static unsigned contexts[MAXIMUM_GPUS][1 + MAXIMUM_INSTANCES]; /* of this process */

/* ---- which devices CUDA_VISIBLE_DEVICES shows ---- */

static int is_named(const char *word, const struct device *device, int number) {
    char uuid[TEXT], *end;
    if (isdigit((unsigned char)*word)) return strtol(word, &end, 10) == number && !*end;
    device_uuid(uuid, device);
    return *word && strncasecmp(word, uuid, strlen(word)) == 0;
}

/* All devices that a program may use, in the order of their index. A GPU with instances is none. */
static int usable(struct device found[MAXIMUM_VISIBLE]) {
    int count = 0;
    for (unsigned i = 0; i < machine.gpu_count; i++) {
        long long instances = machine.gpus[i].numbers[MIG];
        if (machine.gpus[i].numbers[LOST] == 1) continue;
        if (instances <= 0) found[count++] = (struct device){i, -1};
        for (int j = 0; j < instances; j++) found[count++] = (struct device){i, j};
    }
    return count;
}

/* As the real one: the first word that names no device ends the list. */
static void find_visible(void) {
    struct device all[MAXIMUM_VISIBLE];
    int count = usable(all);
    char *words, *rest, *word;
    const char *value = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!value) { memcpy(visible, all, sizeof all); visible_count = count; return; }
    if (!(words = strdup(value))) return;
    for (rest = words; (word = strsep(&rest, ",")) && visible_count < MAXIMUM_VISIBLE;) {
        int i = 0;
        while (i < count && !is_named(word, &all[i], i)) i++;
        if (i == count) break;
        visible[visible_count++] = all[i];
    }
    free(words);
}

static int enter_cuda(const char *function) {
    pthread_mutex_lock(&lock);
    if (visible_count < 0) return leave(CUDA_NOT_INITIALIZED);
    return refresh_machine() || wait_while_hanging(function) ? leave(CUDA_NO_DEVICE) : SUCCESS;
}

static int enter_cuda_device(const char *function, int number) {
    int code = enter_cuda(function);
    return code || (number >= 0 && number < visible_count) ? code : leave(CUDA_INVALID_DEVICE);
}

int cuInit(unsigned flags) {
    char path[PATH_MAX];
    pthread_mutex_lock(&lock);
    if (flags) return leave(CUDA_INVALID_VALUE);
    if (!find_directory(path)) return leave(CUDA_NO_DEVICE);
    if (strcmp(directory, path) != 0) machine_stamp.known = processes_stamp.known = 0;
    strcpy(directory, path);
    if (refresh_machine() || wait_while_hanging(__func__)) return leave(CUDA_NO_DEVICE);
    if (visible_count < 0) find_visible();
    return leave(visible_count ? SUCCESS : CUDA_NO_DEVICE);
}

int cuDriverGetVersion(int *version) {
    int major = 0, minor = 0, code = enter_cuda(__func__);
    if (code) return code;
    if (!version) return leave(CUDA_INVALID_VALUE);
    sscanf(machine.cuda_version, "%d.%d", &major, &minor);
    *version = 1000 * major + 10 * minor;
    return leave(SUCCESS);
}

int cuDeviceGetCount(int *count) {
    int code = enter_cuda(__func__);
    if (code || !count) return code ? code : leave(CUDA_INVALID_VALUE);
    *count = visible_count;
    return leave(SUCCESS);
}

int cuDeviceGet(int *device, int number) {
    int code = enter_cuda_device(__func__, number);
    if (code || !device) return code ? code : leave(CUDA_INVALID_VALUE);
    *device = number;
    return leave(SUCCESS);
}

int cuDeviceGetName(char *name, int length, int number) {
    int code = enter_cuda_device(__func__, number);
    if (code || !name || length < 1) return code ? code : leave(CUDA_INVALID_VALUE);
    snprintf(name, length, "%s", machine.gpus[visible[number].gpu].texts[NAME]);
    return leave(SUCCESS);
}

int cuDeviceGetPCIBusId(char *id, int length, int number) {
    int code = enter_cuda_device(__func__, number);
    if (code || !id || length < 1) return code ? code : leave(CUDA_INVALID_VALUE);
    snprintf(id, length, "%s", machine.gpus[visible[number].gpu].texts[PCI_BUS_ID]);
    return leave(SUCCESS);
}

int cuDeviceGetAttribute(int *value, int attribute, int number) {
    int code = enter_cuda_device(__func__, number);
    if (code || !value || attribute != ATTRIBUTE_COMPUTE_MODE) return code ? code : leave(CUDA_INVALID_VALUE);
    *value = (int)machine.gpus[visible[number].gpu].numbers[COMPUTE_MODE];
    return leave(SUCCESS);
}

/* ---- contexts ---- */

static u64 own_start_time(void) {
    char text[1024], *rest;
    u64 started = 0;
    ssize_t length;
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    if (!(rest = strrchr(text, ')'))) return 0;
    sscanf(rest + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &started);
    return started;
}

/* What this process uses, in the file that every reader of the machine looks at; none when nothing. */
static int write_contexts(void) {
    char path[PATH_MAX + 64], temporary[PATH_MAX + 80];
    unsigned pid = (unsigned)getpid();
    int any = 0;
    FILE *file;
    snprintf(path, sizeof path, "%s/processes/%u.%llu", directory, pid, own_start_time());
    snprintf(temporary, sizeof temporary, "%s/processes/.cuda.%u", directory, pid);
    if (!(file = fopen(temporary, "we"))) return CUDA_OUT_OF_MEMORY;
    for (int i = 0; i < MAXIMUM_GPUS; i++)
        for (int j = 0; j <= MAXIMUM_INSTANCES; j++) {
            if (!contexts[i][j]) continue;
            any = 1;
            if (j) fprintf(file, "gpu.%d:%d.memory=%llu\n", i, j - 1, CONTEXT_MEMORY);
            else fprintf(file, "gpu.%d.memory=%llu\n", i, CONTEXT_MEMORY);
        }
    fchmod(fileno(file), 0644);
    fclose(file);
    if (any) return rename(temporary, path) ? CUDA_OUT_OF_MEMORY : SUCCESS;
    unlink(temporary);
    unlink(path);
    return SUCCESS;
}

static int others_on(const struct device *device) {
    refresh_processes();
    for (size_t i = 0; i < use_count; i++)
        if (uses[i].pid != (unsigned)getpid() && !uses[i].graphics && on_device(&uses[i], device)) return 1;
    return 0;
}

static int make_context(const char *function, void **context, int number) {
    int code = enter_cuda_device(function, number);
    struct device device;
    long long mode;
    if (code || !context) return code ? code : leave(CUDA_INVALID_VALUE);
    device = visible[number];
    wait_milliseconds(machine.cuda_slow);
    if (refresh_machine()) return leave(CUDA_NO_DEVICE);
    if (machine.cuda_fault) return leave(machine.cuda_fault);
    mode = machine.gpus[device.gpu].numbers[COMPUTE_MODE];
    if (mode == PROHIBITED || (mode == EXCLUSIVE_PROCESS && others_on(&device))) return leave(CUDA_DEVICE_UNAVAILABLE);
    contexts[device.gpu][1 + device.instance]++;
    *context = &visible[number];
    return leave(write_contexts());
}

static int end_context(const struct device *device) {
    unsigned *count = &contexts[device->gpu][1 + device->instance];
    if (!*count) return leave(CUDA_INVALID_VALUE);
    --*count;
    return leave(write_contexts());
}

int cuDevicePrimaryCtxRetain(void **context, int number) { return make_context(__func__, context, number); }
int cuCtxCreate_v2(void **context, unsigned flags, int number) {
    (void)flags;
    return make_context(__func__, context, number);
}

int cuDevicePrimaryCtxRelease_v2(int number) {
    int code = enter_cuda_device(__func__, number);
    return code ? code : end_context(&visible[number]);
}
int cuCtxDestroy_v2(void *context) {
    int code = enter_cuda(__func__);
    if (code || !context) return code ? code : leave(CUDA_INVALID_VALUE);
    return end_context(context);
}

int cuGetErrorString(int code, const char **text) {
    if (!text) return CUDA_INVALID_VALUE;
    *text = code == CUDA_OUT_OF_MEMORY ? "out of memory" : code == CUDA_NO_DEVICE ? "no CUDA-capable device is detected"
            : code == CUDA_DEVICE_UNAVAILABLE ? "CUDA-capable device(s) is/are busy or unavailable"
            : code == SUCCESS ? "no error" : "unknown error";
    return SUCCESS;
}
