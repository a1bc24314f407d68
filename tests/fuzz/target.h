/*
 * A fuzz target: one function that libFuzzer or replay.c calls. It must
 * return 0 for any bytes, and aborts (FUZZ_CHECK) where a property fails.
 */
#ifndef FUZZ_TARGET_H
#define FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(cond)                                               \
    do {                                                               \
        if (!(cond)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
            abort();                                                   \
        }                                                              \
    } while (0)

/* The input as a file, for readers that take paths: the same scratch folder
 * for all inputs of a process, removed at its end. */
static char fuzz_dir[64];
static char fuzz_path[128];

static inline void fuzz_drop(void)
{
    unlink(fuzz_path);
    rmdir(fuzz_dir);
}

/* A target uses one name. */
static inline const char *fuzz_file(const char *name, const uint8_t *data,
                                    size_t size)
{
    FILE *f;

    if (!fuzz_dir[0]) {
        snprintf(fuzz_dir, sizeof(fuzz_dir), "/tmp/anemll-fuzz-%ld",
                 (long)getpid());
        FUZZ_CHECK(!mkdir(fuzz_dir, 0700));
        atexit(fuzz_drop);
    }
    snprintf(fuzz_path, sizeof(fuzz_path), "%s/%s", fuzz_dir, name);
    f = fopen(fuzz_path, "wb");
    FUZZ_CHECK(f);
    FUZZ_CHECK(fwrite(data, 1, size, f) == size);
    FUZZ_CHECK(!fclose(f));
    return fuzz_path;
}

#endif
