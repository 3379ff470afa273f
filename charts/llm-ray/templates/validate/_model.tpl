{{/* Where the checkpoint comes from and where it is kept. Usage: $ */}}
{{- define "llm-ray.validate.model" -}}
{{- $kind := include "llm-ray.modelKind" . -}}
{{- $s3 := .Values.model.s3 -}}
{{- if eq $kind "s3" -}}
{{- range $key := list "versionId" "sha256" -}}
{{- if not (index $s3 $key) -}}
{{- include "llm-ray.refuse" (list (printf "model.s3.%s" $key) "" "pin the manifest of an s3:// source" "set it to what the store says of that object") -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- include "llm-ray.refuseAll" (list (dict "model.s3.versionId" $s3.versionId "model.s3.sha256" $s3.sha256 "model.s3.endpoint" $s3.endpoint)
  (printf "be empty unless model.source is s3://…; it is %s" .Values.model.source) "take it out, or change model.source") -}}
{{- end -}}
{{- $forms := "^(hf://[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+@[A-Za-z0-9_./-]+|s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/.+\\.json|pvc://[a-z0-9][-a-z0-9.]*(/.*)?|oci://.+|/.+)$" -}}
{{- if not (regexMatch $forms .Values.model.source) -}}
{{- include "llm-ray.refuse" (list "model.source" .Values.model.source "be hf://owner/name@COMMIT, s3://bucket/path/manifest.json, pvc://claim/path, oci://image@sha256:… or /path" "for a Hugging Face model write hf://, its name, @ and a commit (git ls-remote shows it)") -}}
{{- else if and (eq $kind "hf") (not (regexMatch "@[0-9a-f]{40}$" .Values.model.source)) -}}
{{- include "llm-ray.refuse" (list "model.source" .Values.model.source "pin one commit of the repository, because branches and tags move" "end it with @ and the 40 hexadecimal digits of a commit") -}}
{{- end -}}
{{- include "llm-ray.validate.cache" . -}}
{{- end -}}

{{/* The claim of the downloads. Usage: $ */}}
{{- define "llm-ray.validate.cache" -}}
{{- $cache := .Values.model.cache -}}
{{- if and $cache.existingClaim (ne $cache.type "pvc") -}}
{{- include "llm-ray.refuse" (list "model.cache.existingClaim" $cache.existingClaim (printf "be empty with model.cache.type %s" $cache.type) "set model.cache.type to pvc") -}}
{{- end -}}
{{- if and $cache.existingClaim (not (include "llm-ray.modelIsFetched" .)) -}}
{{- include "llm-ray.refuse" (list "model.cache.existingClaim" $cache.existingClaim (printf "be empty with model.source %s, which is not downloaded" .Values.model.source) "take it out, or read the claim itself by model.source pvc://CLAIM/PATH") -}}
{{- end -}}
{{- $pods := include "llm-ray.modelReaders" . | int -}}
{{- if and (include "llm-ray.modelIsFetched" .) (eq $cache.type "pvc") (not $cache.existingClaim) (gt $pods 1) (not (has "ReadWriteMany" $cache.accessModes)) -}}
{{- include "llm-ray.refuse" (list "model.cache.accessModes" $cache.accessModes (printf "have ReadWriteMany when %d pods read the model" $pods) "set it to [ReadWriteMany] with a storage class that can share, or set model.cache.type to ephemeral") -}}
{{- end -}}
{{- end -}}

{{/* Pods that may have the model's volume at once: an upgrade of a RayService has two clusters. Usage: $ */}}
{{- define "llm-ray.modelReaders" -}}
{{- $pods := gt (int .Values.head.numCpus) 0 | ternary 1 0 -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $pods = add $pods (mul .maxReplicas .hosts) -}}
{{- end -}}
{{- mul $pods (has (include "llm-ray.rolloutStrategy" .) (list "blueGreen" "incremental") | ternary 2 1) -}}
{{- end -}}
