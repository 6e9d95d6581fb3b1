// Uses a GPU's memory as a server does while it starts: loads in steps, rests, jumps, frees, dies.
//
//   load DEVICE STEP_MIB STEPS JUMP_MIB
//
// Each line of standard input takes one step of the play; each answer on standard output is
// "WORD MIB": what was done and what is held now (the CUDA context comes on top). Words in order:
// context, step (STEPS times), jump, freed. After "freed" it loads one step again ("step") and
// aborts at the next line, with the memory held: the driver has to take it back.

#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime.h>

static std::vector<void *> held;
static long held_mib = 0;

static void check(cudaError_t result, const char *what) {
    if (result != cudaSuccess) {
        fprintf(stderr, "load: %s: %s\n", what, cudaGetErrorString(result));
        exit(3);
    }
}

static void take(long mib) {
    void *memory = nullptr;
    check(cudaMalloc(&memory, (size_t)mib << 20), "cudaMalloc");
    check(cudaMemset(memory, 1, (size_t)mib << 20), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    held.push_back(memory);
    held_mib += mib;
}

static void release() {
    for (void *memory : held)
        check(cudaFree(memory), "cudaFree");
    held.clear();
    held_mib = 0;
}

static void tell(const char *word) {
    printf("%s %ld\n", word, held_mib);
    fflush(stdout);
}

static void wait_for_line() {
    int c;
    while ((c = getchar()) != '\n')
        if (c == EOF)
            exit(4);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: load DEVICE STEP_MIB STEPS JUMP_MIB\n");
        return 2;
    }
    const int device = atoi(argv[1]), steps = atoi(argv[3]);
    const long step_mib = atol(argv[2]), jump_mib = atol(argv[4]);

    wait_for_line();
    check(cudaSetDevice(device), "cudaSetDevice");
    check(cudaFree(nullptr), "context");
    tell("context");
    for (int i = 0; i < steps; i++) {
        wait_for_line();
        take(step_mib);
        tell("step");
    }
    wait_for_line();
    take(jump_mib);
    tell("jump");
    wait_for_line();
    release();
    tell("freed");
    wait_for_line();
    take(step_mib);
    tell("step");
    wait_for_line();
    abort();
}
