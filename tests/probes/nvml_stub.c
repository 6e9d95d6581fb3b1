/* A libnvidia-ml.so.1 without a driver, for tests through the real Python binding.
 *
 * It reads the file named by NVML_STUB anew at every call, so that a test changes the machine while
 * the program runs (write a new file and rename it). Lines, in any order:
 *
 *   gpu UUID TOTAL USED MODEL        a GPU; indices follow the order of the lines
 *   mig UUID PARENT TOTAL USED       a MIG slice of the GPU whose UUID is PARENT
 *   process UUID PID BYTES           what a process holds on a GPU or slice; -1: not told
 *   fail FUNCTION CODE [UUID]        the function returns CODE (for that GPU or slice only)
 *   hang FUNCTION                    the function does not return while the line is there
 *
 * Init and shutdown are noted in the file NVML_STUB + ".calls", one character a call (I, S).
 * Handles are void after the last shutdown, which the real library does not check so strictly.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999 };
enum { MAX_DEVICES = 64, MAX_PROCESSES = 64 };
#define RESERVED (512ULL << 20)
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFULL

typedef unsigned long long u64;
typedef struct { char uuid[96], parent[96], model[96]; u64 total, used; int index; } device_t;
typedef struct { unsigned epoch; char uuid[96]; } handle_t;
typedef struct { char uuid[96]; unsigned pid; u64 bytes; } process_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } process_info_t;
typedef struct {
    device_t devices[MAX_DEVICES];
    process_t processes[MAX_PROCESSES];
    int devices_n, gpus_n, processes_n;
} machine_t;

static int users;
static unsigned epoch;

static FILE *state(void) {
    const char *path = getenv("NVML_STUB");
    return path ? fopen(path, "r") : NULL;
}

static void note(char call) {
    char path[4096];
    snprintf(path, sizeof path, "%s.calls", getenv("NVML_STUB"));
    FILE *file = fopen(path, "a");
    if (file) {
        fputc(call, file);
        fclose(file);
    }
}

/* Returns the code that the file orders for a call, after any hang; SUCCESS if it orders none. */
static int ordered(const char *function, const char *uuid) {
    char line[512], word[16], name[96], target[96];
    for (;;) {
        FILE *file = state();
        int code, hangs = 0, result = SUCCESS;
        if (!file)
            return UNKNOWN;
        while (fgets(line, sizeof line, file)) {
            if (sscanf(line, "%15s %95s", word, name) < 2 || strcmp(name, function))
                continue;
            if (!strcmp(word, "hang"))
                hangs = 1;
            int words = sscanf(line, "fail %*s %d %95s", &code, target);
            if (words == 1 || (words == 2 && uuid && !strcmp(target, uuid)))
                result = code;
        }
        fclose(file);
        if (!hangs)
            return result;
        usleep(2000);
    }
}

static int read_machine(machine_t *machine) {
    char line[512];
    long long bytes;
    FILE *file = state();
    memset(machine, 0, sizeof *machine);
    if (!file)
        return UNKNOWN;
    while (fgets(line, sizeof line, file)) {
        device_t *device = &machine->devices[machine->devices_n];
        process_t *process = &machine->processes[machine->processes_n];
        if (sscanf(line, "gpu %95s %llu %llu %95[^\n]", device->uuid, &device->total, &device->used,
                   device->model) == 4) {
            device->index = machine->gpus_n++;
            machine->devices_n++;
        } else if (sscanf(line, "mig %95s %95s %llu %llu", device->uuid, device->parent, &device->total,
                          &device->used) == 4) {
            machine->devices_n++;
        } else if (sscanf(line, "process %95s %u %lld", process->uuid, &process->pid, &bytes) == 3) {
            process->bytes = bytes < 0 ? NOT_AVAILABLE : (u64)bytes;
            machine->processes_n++;
        }
    }
    fclose(file);
    return SUCCESS;
}

static device_t *by_uuid(machine_t *machine, const char *uuid) {
    for (int i = 0; i < machine->devices_n; i++)
        if (!strcmp(machine->devices[i].uuid, uuid))
            return &machine->devices[i];
    return NULL;
}

/* The n-th GPU (parent == NULL), or the n-th slice of a GPU. */
static device_t *nth(machine_t *machine, const char *parent, unsigned n) {
    for (int i = 0; i < machine->devices_n; i++) {
        device_t *device = &machine->devices[i];
        if (!strcmp(device->parent, parent ? parent : "") && n-- == 0)
            return device;
    }
    return NULL;
}

static int give(device_t *device, void **out) {
    if (!device)
        return NOT_FOUND;
    handle_t *handle = calloc(1, sizeof *handle); /* never freed: callers may keep it for ever */
    handle->epoch = epoch;
    strcpy(handle->uuid, device->uuid);
    *out = handle;
    return SUCCESS;
}

/* What all calls begin with: the orders of the file, the state of the library, the device. */
static int begin(const char *function, handle_t *handle, machine_t *machine, device_t **device) {
    int code = ordered(function, handle ? handle->uuid : NULL);
    if (code)
        return code;
    if (!users)
        return UNINITIALIZED;
    if (handle && handle->epoch != epoch)
        return INVALID_ARGUMENT;
    if ((code = read_machine(machine)))
        return code;
    if (handle && !(*device = by_uuid(machine, handle->uuid)))
        return NOT_FOUND;
    return SUCCESS;
}

#define BEGIN(handle)                                                                                  \
    machine_t machine;                                                                                 \
    device_t *device = NULL;                                                                           \
    int code = begin(__func__, (handle), &machine, &device);                                           \
    (void)device;                                                                                      \
    if (code)                                                                                          \
        return code

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = ordered(__func__, NULL);
    if (code)
        return code;
    note('I');
    if (users++ == 0)
        epoch++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    int code = ordered(__func__, NULL);
    if (code)
        return code;
    if (!users)
        return UNINITIALIZED;
    note('S');
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error that the binding does not know";
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN(NULL);
    *count = machine.gpus_n;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    BEGIN(NULL);
    device = nth(&machine, NULL, index);
    code = device ? ordered("handle", device->uuid) : SUCCESS;
    return code ? code : device ? give(device, out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    BEGIN(NULL);
    code = ordered("handle", uuid);
    return code ? code : give(by_uuid(&machine, uuid), out);
}

int nvmlDeviceGetUUID(handle_t *handle, char *text, unsigned length) {
    BEGIN(handle);
    snprintf(text, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(handle_t *handle, char *text, unsigned length) {
    BEGIN(handle);
    snprintf(text, length, "%s", device->model);
    return SUCCESS;
}

int nvmlDeviceGetIndex(handle_t *handle, unsigned *index) {
    BEGIN(handle);
    *index = device->index;
    return SUCCESS;
}

/* Version 1 counts what the driver keeps for itself as used. */
int nvmlDeviceGetMemoryInfo(handle_t *handle, memory_t *memory) {
    BEGIN(handle);
    memory->total = device->total;
    memory->used = device->used + RESERVED;
    memory->free = device->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(handle_t *handle, memory_v2_t *memory) {
    BEGIN(handle);
    if (memory->version != 0x02000028)
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = device->total;
    memory->used = device->used;
    memory->reserved = RESERVED;
    memory->free = device->total - device->used - RESERVED;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(handle_t *handle, unsigned *count, process_info_t *processes) {
    BEGIN(handle);
    unsigned room = *count, found = 0;
    for (int i = 0; i < machine.processes_n; i++) {
        if (strcmp(machine.processes[i].uuid, device->uuid))
            continue;
        if (found < room) {
            processes[found].pid = machine.processes[i].pid;
            processes[found].bytes = machine.processes[i].bytes;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(handle_t *handle, unsigned *count) {
    BEGIN(handle);
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(handle_t *handle, unsigned index, void **out) {
    BEGIN(handle);
    return give(nth(&machine, device->uuid, index), out);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t *handle, void **out) {
    BEGIN(handle);
    return give(by_uuid(&machine, device->parent), out);
}
