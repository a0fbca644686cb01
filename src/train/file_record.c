#include "train/file_record.h"

#include <openssl/evp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char tr__save_key[] = "trireme.save", tr__settings_key[] = "trireme.settings";

void tr__file_record_free(tr__file_record *record)
{
    for (int i = 0; i < record->count; i++) free(record->tensors[i].name);
    free(record->tensors);
    *record = (tr__file_record){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const tr__tensor_record *)a)->name, ((const tr__tensor_record *)b)->name);
}

void tr__file_record_sort(tr__file_record *record)
{
    if (record->count) qsort(record->tensors, (size_t)record->count, sizeof *record->tensors, by_name);
}

const tr__tensor_record *tr__file_record_find(const tr__file_record *record, const char *name)
{
    tr__tensor_record key = {.name = (char *)name};
    return record->count ? bsearch(&key, record->tensors, (size_t)record->count, sizeof key, by_name) : NULL;
}

/* ---- SHA-256 ------------------------------------------------------------------------------------------------------ */

tr_status tr__sha256_begin(tr__sha256 *hash)
{
    hash->context = EVP_MD_CTX_new();
    if (hash->context && EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL)) return TR_OK;
    EVP_MD_CTX_free(hash->context);
    hash->context = NULL;
    return tr__fail(TR_UNSUPPORTED, "OpenSSL here has no SHA-256");
}

void tr__sha256_add(tr__sha256 *hash, const void *data, size_t bytes)
{
    EVP_DigestUpdate(hash->context, data, bytes);
}

void tr__sha256_end(tr__sha256 *hash, char text[TR__SHA256_TEXT])
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    EVP_DigestFinal_ex(hash->context, digest, &length);
    for (unsigned i = 0; i < length; i++) sprintf(text + (size_t)2 * i, "%02x", digest[i]);
    EVP_MD_CTX_free(hash->context);
    hash->context = NULL;
}
