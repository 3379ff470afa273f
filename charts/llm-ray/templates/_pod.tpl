{{/* What head and worker pods have in common. */}}

{{/* security.containerSecurityContext with more capabilities. Usage: (list $ CAPABILITIES) → YAML map */}}
{{- define "llm-ray.securityContext" -}}
{{- $context := include "llm-ray.overlay" (list dict (index . 0).Values.security.containerSecurityContext) | fromYaml -}}
{{- with index . 1 -}}
{{- $capabilities := $context.capabilities | default dict -}}
{{- $_ := set $context "capabilities" (merge (dict "add" (concat ($capabilities.add | default list) . | uniq)) $capabilities) -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* HTTP probe. Usage: (list PATH PORT PERIOD TIMEOUT FAILURES) → YAML map */}}
{{- define "llm-ray.httpProbe" -}}
httpGet: {path: {{ index . 0 }}, port: {{ index . 1 }}}
periodSeconds: {{ index . 2 }}
timeoutSeconds: {{ index . 3 }}
failureThreshold: {{ index . 4 }}
{{- end -}}

{{/*
The Ray container, without a command: KubeRay writes it. spec is the head's or the group's values; env, resources,
capabilities, ports, mounts and probes are what only this role has. Usage: (dict "root" $ "name" … "spec" …) → YAML map
*/}}
{{- define "llm-ray.rayContainer" -}}
name: {{ .name }}
image: {{ include "llm-ray.image" (list .root .root.Values.image) | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
ports:
  {{- toYaml .ports | nindent 2 }}
env:
  {{- include "llm-ray.env" (include "llm-ray.envMap" (list .env .root.Values.serve.env .spec.env) | fromYaml) | nindent 2 }}
resources:
  {{- toYaml .resources | nindent 2 }}
{{- range $probe, $value := .probes }}
{{ $probe }}:
  {{- toYaml $value | nindent 2 }}
{{- end }}
securityContext:
  {{- include "llm-ray.securityContext" (list .root .capabilities) | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: dshm, mountPath: /dev/shm}
  {{- with .mounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with include "llm-ray.named" (list .spec.extraVolumeMounts "mountPath") | fromYamlArray }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
The pod template. spec is the head's or the group's values; group is the name that the gang knows; labels and annotations
are what only this role has, as are ray (container), initContainers, sidecars and volumes (lists) and shm (size).
Usage: (dict "root" $ "component" … "spec" …) → YAML map
*/}}
{{- define "llm-ray.podTemplate" -}}
{{- $root := .root -}}
{{- $labels := merge (dict) (include "llm-ray.selectorLabels" . | fromYaml) .labels (include "llm-ray.meshPodLabels" $root | fromYaml) .spec.podLabels -}}
{{- $gang := include "llm-ray.gangPodAnnotations" (list $root .group) | fromYaml -}}
{{- $annotations := merge (dict) .spec.podAnnotations .annotations $gang (include "llm-ray.meshPodAnnotations" $root | fromYaml) -}}
metadata:
  labels:
    {{- toYaml $labels | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "llm-ray.serviceAccountName" (list $root .component) | quote }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "llm-ray.gracePeriod" (list $root .spec) }}
  {{- if eq $root.Values.autoscaling.mode "serve" }}
  restartPolicy: Never
  {{- end }}
  securityContext:
    {{- include "llm-ray.overlay" (list dict $root.Values.security.podSecurityContext) | nindent 4 }}
  {{- include "llm-ray.podPlacement" . | nindent 2 }}
  {{- with include "llm-ray.imagePullSecrets" $root }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- $init := concat (include "llm-ray.named" (list .spec.extraInitContainers "name") | fromYamlArray) .initContainers }}
  {{- with concat $init (include "llm-ray.sidecars" .sidecars | fromYamlArray) }}
  initContainers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    {{- toYaml (concat (list .ray) (include "llm-ray.named" (list .spec.extraContainers "name") | fromYamlArray)) | nindent 4 }}
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: {{ .spec.tmpSize | quote }}}
    - name: dshm
      emptyDir: {medium: Memory, sizeLimit: {{ .shm | quote }}}
    {{- with concat .volumes (include "llm-ray.named" (list .spec.extraVolumes "name") | fromYamlArray) }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/*
Containers as Kubernetes' own sidecars, which it restarts also where the pod's policy is Never, as Ray's autoscaler wants it.
Usage: CONTAINERS, {} is left out → YAML list
*/}}
{{- define "llm-ray.sidecars" -}}
{{- $out := list -}}
{{- range . -}}
{{- with . -}}
{{- $out = append $out (set . "restartPolicy" "Always") -}}
{{- end -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
