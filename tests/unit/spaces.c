#include "spaces.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int made;
static pid_t owner; /* whose children use them too */

/* Other processes may run the same test. The bridge has a namespace of its own. */
enum { BRIDGE = SPACES_MOST };

char *space_name(int host, char text[SPACE_TEXT])
{
    if (!owner) owner = getpid();
    snprintf(text, SPACE_TEXT, "trireme-%d-%c", (int)owner, "abcds"[host]);
    return text;
}

char *space_address(int host, char text[SPACE_TEXT])
{
    snprintf(text, SPACE_TEXT, "10.231.77.%d", host + 1);
    return text;
}

static bool shell(const char *command)
{
    int status = system(command); // NOLINT(cert-env33-c): constant texts and numbers
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool make_bridge(void)
{
    char command[512], bridge[SPACE_TEXT];
    space_name(BRIDGE, bridge);
    snprintf(command, sizeof command, "ip netns add %s && ip -n %s link add bridge type bridge && "
        "ip -n %s link set bridge up", bridge, bridge, bridge);
    return shell(command);
}

static bool make_host(int host)
{
    char command[1024], name[SPACE_TEXT], bridge[SPACE_TEXT], address[SPACE_TEXT];
    space_name(host, name);
    space_name(BRIDGE, bridge);
    space_address(host, address);
    snprintf(command, sizeof command, "ip netns add %s && ip link add veth0 netns %s type veth peer name to%d netns %s && "
        "ip -n %s link set to%d master bridge up && ip -n %s addr add %s/24 dev veth0 && ip -n %s link set veth0 up && "
        "ip -n %s link set lo up", name, name, host, bridge, bridge, host, name, address, name, name);
    return shell(command);
}

bool spaces_make(int count)
{
    bool able = geteuid() == 0 && make_bridge();
    for (made = 0; able && made < count;) able = make_host(made++);
    if (able) return true;
    spaces_remove();
    printf("network namespaces cannot be made here (that needs root and iproute2): skipped\n");
    return false;
}

void spaces_remove(void)
{
    char command[128], name[SPACE_TEXT];
    for (int host = 0; host <= made; host++) {
        snprintf(command, sizeof command, "ip netns del %s 2>/dev/null", space_name(host < made ? host : BRIDGE, name));
        bool had = shell(command);
        (void)had;
    }
    made = 0;
}

bool space_enter(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool there = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    if (fd >= 0) close(fd);
    return there;
}

bool space_link(int host, bool up)
{
    char command[128], name[SPACE_TEXT];
    snprintf(command, sizeof command, "ip -n %s link set veth0 %s", space_name(host, name), up ? "up" : "down");
    return shell(command);
}

bool space_shape(int host, const char *netem)
{
    char command[256], name[SPACE_TEXT];
    space_name(host, name);
    if (netem)
        snprintf(command, sizeof command, "tc -n %s qdisc replace dev veth0 root netem %s 2>/dev/null", name, netem);
    else
        snprintf(command, sizeof command, "tc -n %s qdisc del dev veth0 root 2>/dev/null; true", name);
    return shell(command);
}
