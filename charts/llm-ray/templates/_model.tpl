{{/* Where the checkpoint comes from, and how it gets into the pods that hold ranks. */}}

{{/* hf, s3, pvc, oci or path. Usage: $ */}}
{{- define "llm-ray.modelKind" -}}
{{- $scheme := regexFind "^[a-z0-9]+://" .Values.model.source | trimSuffix "://" -}}
{{- $scheme | default "path" -}}
{{- end -}}

{{/* Absolute path of the checkpoint in the pods. Usage: $ */}}
{{- define "llm-ray.modelPath" -}}
{{- $kind := include "llm-ray.modelKind" . -}}
{{- if eq $kind "path" -}}
{{- .Values.model.source -}}
{{- else if eq $kind "pvc" -}}
{{- printf "/models/%s" (regexReplaceAll "^pvc://[^/]+/?" .Values.model.source "") | trimSuffix "/" -}}
{{- else if eq $kind "oci" -}}
{{- printf "/models/%s" .Values.model.name -}}
{{- else -}}
{{- /* A directory per revision: a new one never touches what running ranks read. */ -}}
{{- printf "/models/%s-%s" .Values.model.name (list .Values.model.source .Values.model.s3.versionId .Values.model.s3.sha256 | join " " | sha256sum | trunc 8) -}}
{{- end -}}
{{- end -}}

{{/* Whether a cached download serves it. Usage: $ → "true" or "" */}}
{{- define "llm-ray.modelIsFetched" -}}
{{- has (include "llm-ray.modelKind" .) (list "hf" "s3") | ternary "true" "" -}}
{{- end -}}

{{/* Claim that keeps the downloads, for cache type pvc. Usage: $ */}}
{{- define "llm-ray.modelClaim" -}}
{{- .Values.model.cache.existingClaim | default (include "llm-ray.componentName" (list . "models")) -}}
{{- end -}}

{{/* What a pod needs to read the model and the API keys. Usage: (list $ SPEC) → YAML {mounts, initContainers, volumes} */}}
{{- define "llm-ray.modelParts" -}}
{{- $root := index . 0 -}}
{{- $volumes := include "llm-ray.modelVolumes" $root | fromYamlArray -}}
{{- $mounts := list -}}
{{- range $volumes -}}
{{- $path := eq .name "api-keys" | ternary "/etc/llm-ray/keys" (hasKey . "image" | ternary (include "llm-ray.modelPath" $root) "/models") -}}
{{- $mounts = append $mounts (dict "name" .name "mountPath" $path "readOnly" true) -}}
{{- end -}}
{{- $init := list -}}
{{- if include "llm-ray.modelIsFetched" $root -}}
{{- $init = list (include "llm-ray.fetchContainer" . | fromYaml) -}}
{{- end -}}
{{- dict "mounts" $mounts "initContainers" $init "volumes" $volumes | toYaml -}}
{{- end -}}

{{/* Volumes `models` and `api-keys`. Usage: $ → YAML list */}}
{{- define "llm-ray.modelVolumes" -}}
{{- $kind := include "llm-ray.modelKind" . -}}
{{- if include "llm-ray.modelIsFetched" . }}
- name: models
  {{- include "llm-ray.cacheVolume" . | nindent 2 }}
{{- else if eq $kind "pvc" }}
- name: models
  persistentVolumeClaim:
    claimName: {{ regexReplaceAll "^pvc://([^/]+).*$" .Values.model.source "${1}" | quote }}
    readOnly: true
{{- else if eq $kind "oci" }}
- name: models
  image:
    reference: {{ trimPrefix "oci://" .Values.model.source | quote }}
    pullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- with .Values.auth.apiKeys.existingSecret }}
- name: api-keys
  secret:
    secretName: {{ . | quote }}
    items: [{key: {{ $.Values.auth.apiKeys.key | quote }}, path: {{ $.Values.auth.apiKeys.key | quote }}}]
{{- end }}
{{- end -}}

{{/* Source of the volume that keeps downloads. Usage: $ → YAML map */}}
{{- define "llm-ray.cacheVolume" -}}
{{- $cache := .Values.model.cache -}}
{{- if eq $cache.type "emptyDir" -}}
emptyDir: {sizeLimit: {{ $cache.size | quote }}}
{{- else if eq $cache.type "hostPath" -}}
hostPath: {path: {{ $cache.hostPath | quote }}, type: DirectoryOrCreate}
{{- else if eq $cache.type "pvc" -}}
persistentVolumeClaim: {claimName: {{ include "llm-ray.modelClaim" . | quote }}}
{{- else -}}
ephemeral:
  volumeClaimTemplate:
    spec:
      accessModes: [ReadWriteOnce]
      {{- if not (kindIs "invalid" $cache.storageClassName) }}
      storageClassName: {{ $cache.storageClassName | quote }}
      {{- end }}
      resources: {requests: {storage: {{ $cache.size | quote }}}}
{{- end -}}
{{- end -}}

{{/* The download. Usage: (list $ SPEC) → YAML map */}}
{{- define "llm-ray.fetchContainer" -}}
{{- $root := index . 0 -}}
{{- $model := $root.Values.model -}}
{{- $s3 := dict -}}
{{- if eq (include "llm-ray.modelKind" $root) "s3" -}}
{{- $s3 = dict "AWS_ENDPOINT_URL" ($model.s3.endpoint | default nil) "AWS_REGION" ($model.s3.region | default nil) -}}
{{- end -}}
name: fetch-model
image: {{ include "llm-ray.image" (list $root $root.Values.image) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [tini, --, llm-ray, model, pull]
args:
  - {{ $model.source | quote }}
  - {{ include "llm-ray.modelPath" $root | quote }}
  - --timeout={{ int $model.fetchTimeoutSeconds }}
  {{- with $model.s3.versionId }}
  - {{ printf "--version-id=%s" . | quote }}
  {{- end }}
  {{- with $model.s3.sha256 }}
  - --sha256={{ . }}
  {{- end }}
{{- with include "llm-ray.envMap" (list $s3 $root.Values.serve.env (index . 1).env) | fromYaml }}
env:
  {{- include "llm-ray.env" . | nindent 2 }}
{{- end }}
{{- with $model.existingSecret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
resources:
  {{- include "llm-ray.overlay" (list dict $model.fetch.resources) | nindent 2 }}
securityContext:
  {{- include "llm-ray.securityContext" (list $root list) | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: models, mountPath: /models}
{{- end -}}
