// Preloaded into a command: at one exact system call it kills processes with SIGKILL, or the call fails.
//
//   FAULT_CALL    write, rename, fsync, unlink or sendfile
//   FAULT_PATH    part of the name of the file concerned
//   FAULT_TEXT    part of what is written (write only)
//   FAULT_NTH     which of the matching calls (default 1, counted in each process)
//   FAULT_ACTION  group, parent or self: who is killed before the call; ask: the parent gets SIGTERM; half:
//                 half is written, then the group is killed; full: the disk is full (ENOSPC) from this call on;
//                 later: the call continues, and FAULT_DELAY microseconds afterwards the group is killed
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/types.h>
#include <unistd.h>

static long seen;

static int is(const char *name, const char *value) {
    const char *wanted = getenv(name);
    return wanted && strcmp(wanted, value) == 0;
}

static int is_part(const char *name, const char *text, size_t size) {
    const char *wanted = getenv(name);
    return !wanted || memmem(text, size, wanted, strlen(wanted)) != NULL;
}

static const char *path_of(int file, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, size - 1);
    path[length < 0 ? 0 : length] = '\0';
    return path;
}

static void *kill_later(void *unused) {
    usleep(atol(getenv("FAULT_DELAY")));
    kill(0, SIGKILL);
    return unused;
}

// 0: continue; 1: write half, then call again; -1: the call fails.
static int fault(const char *call, const char *path) {
    if (!is("FAULT_CALL", call) || !is_part("FAULT_PATH", path, strlen(path))) return 0;
    const char *nth = getenv("FAULT_NTH");
    long wanted = nth ? atol(nth) : 1;
    if (++seen < wanted) return 0;
    if (is("FAULT_ACTION", "full")) return -1;
    if (seen > wanted) return 0;
    if (is("FAULT_ACTION", "half")) return 1;
    if (is("FAULT_ACTION", "parent")) kill(getppid(), SIGKILL);
    if (is("FAULT_ACTION", "self")) kill(getpid(), SIGKILL);
    if (is("FAULT_ACTION", "ask")) kill(getppid(), SIGTERM);
    if (is("FAULT_ACTION", "group")) kill(0, SIGKILL);
    if (is("FAULT_ACTION", "later")) {
        pthread_t timer;
        pthread_create(&timer, NULL, kill_later, NULL);
    }
    return 0;
}

ssize_t write(int file, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    char path[4096];
    if (is("FAULT_CALL", "write") && is_part("FAULT_TEXT", data, size)) {
        int what = fault("write", path_of(file, path, sizeof path));
        if (what < 0) {
            errno = ENOSPC;
            return -1;
        }
        if (what > 0) {
            real(file, data, size / 2);
            kill(0, SIGKILL);
        }
    }
    return real(file, data, size);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t count) {
    ssize_t (*real)(int, int, off_t *, size_t) = dlsym(RTLD_NEXT, "sendfile");
    char path[4096];
    int what = fault("sendfile", path_of(out, path, sizeof path));
    if (what < 0) {
        errno = ENOSPC;
        return -1;
    }
    if (what > 0) {
        real(out, in, offset, 1000);
        kill(0, SIGKILL);
    }
    return real(out, in, offset, count);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    if (fault("rename", to) < 0) {
        errno = ENOSPC;
        return -1;
    }
    return real(from, to);
}

int unlink(const char *path) {
    int (*real)(const char *) = dlsym(RTLD_NEXT, "unlink");
    fault("unlink", path);
    return real(path);
}

int fsync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    char path[4096];
    fault("fsync", path_of(file, path, sizeof path));
    return real(file);
}
