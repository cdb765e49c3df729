// Records every address that a program connects to, and refuses all but those of this machine: what a test shows is the
// system call, not what the program says of it, and no test reaches a network.
//
// Names below resolves.test lead to the address in them, with hyphens for colons. rebinds.test leads to loopback and to
// a metadata service in turn.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char FIXED[] = ".resolves.test";
static const char REBINDING[] = "rebinds.test";

static void record(const char *address) {
    const char *path = getenv("CONNECT_LOG");
    int file = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    char line[256];
    int length = snprintf(line, sizeof line, "%s\n", address);
    // A lost line would hide a connection.
    if (file < 0 || write(file, line, (size_t)length) != length) abort();
    close(file);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    static int (*real)(int, const struct sockaddr *, socklen_t);
    if (!real) real = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    char text[160];
    int local = 1;
    if (address->sa_family == AF_INET) {
        const struct in_addr *ip = &((const struct sockaddr_in *)address)->sin_addr;
        inet_ntop(AF_INET, ip, text, sizeof text);
        local = ntohl(ip->s_addr) >> 24 == 127;
    } else if (address->sa_family == AF_INET6) {
        const struct in6_addr *ip = &((const struct sockaddr_in6 *)address)->sin6_addr;
        inet_ntop(AF_INET6, ip, text, sizeof text);
        local = IN6_IS_ADDR_LOOPBACK(ip);
    } else if (address->sa_family == AF_UNIX) {
        snprintf(text, sizeof text, "unix:%s", ((const struct sockaddr_un *)address)->sun_path);
    } else {
        snprintf(text, sizeof text, "family:%d", address->sa_family);
    }
    record(text);
    if (!local) {
        errno = ECONNREFUSED;
        return -1;
    }
    return real(socket, address, length);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    static unsigned asked;
    if (!real) {
        real = (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(RTLD_NEXT,
                                                                                                       "getaddrinfo");
    }
    size_t length = node ? strlen(node) : 0;
    // The root's dot.
    if (length && node[length - 1] == '.') length--;
    char address[128];
    size_t fixed = sizeof FIXED - 1, rebinding = sizeof REBINDING - 1;
    if (length > fixed && length - fixed < sizeof address && !strncasecmp(node + length - fixed, FIXED, fixed)) {
        memcpy(address, node, length - fixed);
        address[length - fixed] = 0;
        for (char *at = address; *at; at++) {
            if (*at == '-') *at = ':';
        }
        return real(address, service, hints, found);
    }
    if (length >= rebinding && !strncasecmp(node + length - rebinding, REBINDING, rebinding)) {
        int first = __atomic_fetch_add(&asked, 1, __ATOMIC_SEQ_CST) % 2 == 0;
        return real(first ? "127.0.0.1" : "169.254.169.254", service, hints, found);
    }
    return real(node, service, hints, found);
}
