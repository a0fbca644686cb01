/* The hosts file of a cluster, which people write. */
/* fuzz: 200000, soak: 2000000 */
#include "fuzz.h"

#include "cluster.h"

size_t fuzz_seed(uint32_t number, uint8_t bytes[FUZZ_SEED])
{
    static const char *const texts[] = {
        "a slots=8 address=10.0.0.1\nb slots=8\n# a comment\n\nc",
        "localhost slots=4096 address=fe80::1\r\n\tnode-1.example\tslots=1 # the last",
    };
    const char *text = texts[number % 2];
    memcpy(bytes, text, strlen(text));
    return strlen(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count)
{
    FILE *file = count ? fmemopen((void *)bytes, count, "r") : NULL;
    if (!file) return 0;
    tr_cluster_host *hosts;
    int n;
    if (tr__cluster_hosts_read(file, "hosts", &hosts, &n) == TR_OK) {
        FUZZ_CHECK(n > 0);
        for (int i = 0; i < n; i++) {
            FUZZ_CHECK(hosts[i].slots >= 1 && hosts[i].slots <= TR_LAUNCH_MAX_RANKS);
            FUZZ_CHECK(hosts[i].name[0] && hosts[i].name[0] != '-' && hosts[i].address[0] && hosts[i].address[0] != '-');
            for (int k = 0; k < i; k++) FUZZ_CHECK(strcmp(hosts[k].name, hosts[i].name) != 0);
        }
        tr__cluster_hosts_free(hosts, n);
    }
    fclose(file);
    return 0;
}
