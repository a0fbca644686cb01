/* zeros_npz FILE MIB: writes a compressed archive of so many MiB of zeros. */
#include <trireme/trireme.h>

#include <stdlib.h>

int main(int argc, char **argv)
{
    TR_SCOPE;
    if (argc != 3) return 2;
    tr_tensor_list *list = tr_list_new();
    TR_CHECK(tr_list_add(list, "zeros", tr_zeros(TR_SHAPE(atoll(argv[2]) << 20), .dtype = TR_U8)));
    TR_CHECK(tr_npz_save(argv[1], list, .compress = true));
    return 0;
}
