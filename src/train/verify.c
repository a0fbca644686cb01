/* Verifies a checkpoint: reads all of it, and reports for each part whether it is what was saved. */
#include "base/folder.h"
#include "train/checkpoint.h"
#include "train/file_scan.h"
#include "train/manifest.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct verifying {
    const tr_checkpoint_verify_options *options;
    tr_checkpoint_report *report;
    bool alone;         /* it is a single file that no manifest lists */
    bool is_checkpoint; /* by its name: then its files have been there */
    tr__error *first;   /* the first damage; NULL: none so far */
} verifying;

/* Reports damage, and goes on with what follows; any other failure is returned. */
static tr_status tell(verifying *v, tr_checkpoint_part *part, tr_status status)
{
    if (status != TR_OK && status != TR_FORMAT) return status;
    tr__error *why = status == TR_OK ? NULL : tr__error_take();
    part->damage = why ? why->message : NULL;
    v->report->damaged += why != NULL;
    v->report->not_finite += part->nans + part->infinities > 0;
    if (v->options->on_part) v->options->on_part(part, v->options->user);
    if (v->first)
        tr__error_unref(why);
    else
        v->first = why;
    return TR_OK;
}

static tr_status verify_tensors(verifying *v, const tr__safetensors_reader *r, tr__file_scan *scan, const char *name)
{
    bool history = strcmp(name, tr__checkpoint_files[TR__HISTORY_FILE]) == 0;
    for (int i = 0; i < r->count; i++) {
        const tr__safetensors_entry *e = r->by_offset[i];
        tr__not_finite found;
        tr_status status = tr__file_scan_tensor(scan, e, &found);
        tr_checkpoint_part part = {.file = name,
                                   .tensor = e->name,
                                   .begin = (int64_t)(r->data_begin + e->begin),
                                   .end = (int64_t)(r->data_begin + e->end),
                                   .dtype = e->dtype,
                                   .shape = e->shape,
                                   .first_not_finite = -1};
        if (!history && tr__has_not_finite(&found)) {
            part.nans = found.nans;
            part.infinities = found.infinities;
            part.first_not_finite = found.first;
        }
        v->report->tensors++;
        TR__TRY(tell(v, &part, status));
    }
    return TR_OK;
}

/* The hash covers what the checksums cover: it has something to say of a file only where they find nothing. */
static tr_status verify_contents(verifying *v, const tr__safetensors_reader *r, const char *name)
{
    tr__file_scan scan;
    int damaged = v->report->damaged;
    tr_status status = tr__file_scan_begin(&scan, r, r->record != NULL);
    if (status == TR_OK) status = verify_tensors(v, r, &scan, name);
    if (status == TR_OK && v->report->damaged == damaged) status = tr__file_scan_check(&scan);
    tr__file_scan_end(&scan);
    return status;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* record: the manifest's entry of the file; NULL: it has none. */
static tr_status verify_file(verifying *v, const char *path, const tr__file_record *record, tr_tensor_list *metadata)
{
    const char *name = name_of(path);
    tr__safetensors_reader r;
    tr_status status = tr__safetensors_open(&r, path, record, metadata);
    if (status == TR_NOT_FOUND && (record || v->is_checkpoint)) status = tr__fail(TR_FORMAT, "%s: is missing", path);
    tr_checkpoint_part part = {.file = name, .end = (int64_t)r.file.bytes, .first_not_finite = -1};
    if (status == TR_OK) status = verify_contents(v, &r, name);
    if (status == TR_OK && !v->report->has_manifest && !v->alone && tr_list_metadata(metadata, tr__save_key))
        status = tr__fail(TR_FORMAT, "%s: was saved with a manifest.json beside it, which is missing", path);
    if (status == TR_OK || status == TR_FORMAT) {
        v->report->files++;
        v->report->bytes += part.end;
        status = tell(v, &part, status);
    }
    tr__safetensors_close(&r);
    return status;
}

static tr_status verify_files(verifying *v, const char *folder, const tr__manifest *m)
{
    for (int i = 0; i < TR__CHECKPOINT_FILES; i++) {
        TR_SCOPE;
        const char *name = tr__checkpoint_files[i];
        const tr__file_record *record = m ? tr__manifest_file(m, name) : NULL;
        char path[PATH_MAX];
        TR__TRY(tr__path_join(path, folder, name));
        bool needed = i == TR__MODEL_FILE || (m && i == TR__STATE_FILE);
        if (m && needed && !record) {
            tr_checkpoint_part part = {.file = name, .first_not_finite = -1};
            TR__TRY(tell(v, &part, tr__fail(TR_FORMAT, "%s: its manifest has no %s", folder, name)));
        } else if (record || needed || (!m && access(path, F_OK) == 0)) {
            TR__TRY(verify_file(v, path, record, i == TR__MODEL_FILE ? v->report->about : tr_list_new()));
        }
    }
    return TR_OK;
}

static void describe(tr_checkpoint_report *report, const tr__manifest *m)
{
    report->has_manifest = true;
    report->step = m->step;
    report->loss = m->loss;
    snprintf(report->save, sizeof report->save, "%s", m->save);
    snprintf(report->version, sizeof report->version, "%s", m->version);
    snprintf(report->settings, sizeof report->settings, "%s", m->settings);
}

/* A checkpoint, or one file (NULL: all), by the manifest in its folder. */
static tr_status verify(verifying *v, const char *folder, const char *file)
{
    tr__manifest m;
    bool known;
    tr_status status = tr__checkpoint_manifest(folder, &m, &known);
    const tr__file_record *record = status == TR_OK && known && file ? tr__manifest_file(&m, name_of(file)) : NULL;
    v->alone = file && !record;
    if (status == TR_FORMAT) {
        tr_checkpoint_part part = {.file = "manifest.json", .first_not_finite = -1};
        status = tell(v, &part, status);
    } else if (status == TR_OK) {
        if (known && !v->alone) describe(v->report, &m);
        status = file ? verify_file(v, file, record, v->report->about) : verify_files(v, folder, known ? &m : NULL);
    }
    tr__manifest_free(&m);
    return status;
}

tr_status tr_checkpoint_verify_with(const tr_checkpoint_verify_options *o)
{
    if (!o->path) return tr__fail(TR_INVALID, "checkpoint_verify: the path is NULL");
    tr_checkpoint_report report = {.step = -1, .loss = NAN, .about = tr_list_new()};
    verifying v = {.options = o, .report = &report, .is_checkpoint = tr__checkpoint_named_step(o->path) >= 0};
    char folder[PATH_MAX];
    struct stat s;
    TR__TRY(tr_status_of(report.about));
    if (snprintf(folder, sizeof folder, "%s", o->path) >= PATH_MAX)
        return tr__fail(TR_INVALID, "the path %.60s… is too long", o->path);
    const char *file = stat(o->path, &s) == 0 && !S_ISDIR(s.st_mode) ? o->path : NULL;
    char *slash = strrchr(folder, '/');
    if (file && !slash)
        strcpy(folder, ".");
    else if (file)
        slash[slash == folder] = '\0'; /* "/file" is in "/" */
    tr_status status = verify(&v, folder, file);
    if (status == TR_OK && v.first) {
        status = tr__fail_stored(v.first);
        if (report.damaged > 1)
            status = tr__fail(status, "%s; %d more parts are damaged", v.first->message, report.damaged - 1);
    }
    tr__error_unref(v.first);
    if (o->report) *o->report = report;
    return status;
}
