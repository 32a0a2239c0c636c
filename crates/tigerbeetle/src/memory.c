// The memory functions of glibc under their own names.
//
// The static library of TigerBeetle's client brings weak ones of Zig's runtime library, which work byte by byte. A
// definition in the program wins over one in a shared library, so the linker took Zig's for the whole program. The
// definitions here are strong, so they win over both. They are hidden: the versioned names below must reach glibc.

#include <stddef.h>

#if defined(__x86_64__)
#define MEMCPY_VERSION "GLIBC_2.14"
#define VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define MEMCPY_VERSION "GLIBC_2.17"
#define VERSION "GLIBC_2.17"
#else
#error "build.rs compiles this file for x86_64 and aarch64 only"
#endif

#define GLIBC(name, version) __asm__(".symver glibc_" #name ", " #name "@" version)
#define HIDDEN __attribute__((visibility("hidden")))

GLIBC(memcpy, MEMCPY_VERSION);
GLIBC(memmove, VERSION);
GLIBC(memset, VERSION);
GLIBC(memcmp, VERSION);
GLIBC(bcmp, VERSION);
GLIBC(strlen, VERSION);

void *glibc_memcpy(void *to, const void *from, size_t bytes);
void *glibc_memmove(void *to, const void *from, size_t bytes);
void *glibc_memset(void *to, int byte, size_t bytes);
int glibc_memcmp(const void *one, const void *other, size_t bytes);
int glibc_bcmp(const void *one, const void *other, size_t bytes);
size_t glibc_strlen(const char *text);

HIDDEN void *memcpy(void *to, const void *from, size_t bytes) { return glibc_memcpy(to, from, bytes); }
HIDDEN void *memmove(void *to, const void *from, size_t bytes) { return glibc_memmove(to, from, bytes); }
HIDDEN void *memset(void *to, int byte, size_t bytes) { return glibc_memset(to, byte, bytes); }
HIDDEN int memcmp(const void *one, const void *other, size_t bytes) { return glibc_memcmp(one, other, bytes); }
HIDDEN int bcmp(const void *one, const void *other, size_t bytes) { return glibc_bcmp(one, other, bytes); }
HIDDEN size_t strlen(const char *text) { return glibc_strlen(text); }
