{{/* Head and worker pods. Usage: $ */}}
{{- define "llm-ray.validate.pods" -}}
{{- $root := . -}}
{{- include "llm-ray.validate.pod" (list $root "head" .Values.head (list "cpu" "memory")) -}}
{{- include "llm-ray.validate.rayStartParams" (list "head" .Values.head (dict "num-cpus" "head.numCpus")) -}}
{{- range (include "llm-ray.groups" . | fromJson).groups -}}
{{- $key := printf "workers.%s" .name -}}
{{- include "llm-ray.validate.pod" (list $root $key .spec (list "memory")) -}}
{{- include "llm-ray.validate.rayStartParams" (list $key .spec (dict "num-gpus" (printf "%s.numGpus" $key))) -}}
{{- end -}}
{{- include "llm-ray.validate.env" (list "serve.env" .Values.serve.env) -}}
{{- end -}}

{{/* Usage: (list $ KEY SPEC LIMITS), the limits that nothing derives */}}
{{- define "llm-ray.validate.pod" -}}
{{- $root := index . 0 -}}
{{- $key := index . 1 -}}
{{- $spec := index . 2 -}}
{{- $limits := $spec.resources.limits | default dict -}}
{{- $requests := $spec.resources.requests | default dict -}}
{{- range $name := index . 3 -}}
{{- if kindIs "invalid" (index $limits $name) -}}
{{- include "llm-ray.refuse" (list (printf "%s.resources.limits.%s" $key $name) nil "be set: Ray sizes the node by it, and its autoscaler crashes without" "set it, e.g. to what it requests") -}}
{{- end -}}
{{- end -}}
{{- range $name, $request := $requests -}}
{{- $limit := index $limits $name -}}
{{- if not (or (kindIs "invalid" $request) (kindIs "invalid" $limit)) -}}
{{- if gt (include "llm-ray.milli" $request | int64) (include "llm-ray.milli" $limit | int64) -}}
{{- include "llm-ray.refuse" (list (printf "%s.resources.requests.%s" $key $name) (toString $request) (printf "be at most its limit (%v)" $limit) "lower it, or raise the limit") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "llm-ray.validate.dns" (list $key $spec) -}}
{{- include "llm-ray.validate.env" (list (printf "%s.env" $key) $spec.env) -}}
{{- $drain := $root.Values.serve.deployment.drainTimeoutS -}}
{{- $grace := $spec.terminationGracePeriodSeconds -}}
{{- if and (not (kindIs "invalid" $grace)) (lt (float64 $grace) (float64 $drain)) -}}
{{- include "llm-ray.refuse" (list (printf "%s.terminationGracePeriodSeconds" $key) $grace (printf "be at least serve.deployment.drainTimeoutS (%v), or open requests are cut off" $drain) "raise it, or leave it null") -}}
{{- end -}}
{{- end -}}

{{/* Every pod looks up the head's Service. Usage: (list KEY SPEC) */}}
{{- define "llm-ray.validate.dns" -}}
{{- $key := index . 0 -}}
{{- with index . 1 -}}
{{- if and .hostNetwork (not (has .dnsPolicy (list nil "ClusterFirstWithHostNet"))) -}}
{{- include "llm-ray.refuse" (list (printf "%s.dnsPolicy" $key) .dnsPolicy "be ClusterFirstWithHostNet with hostNetwork, or pods never find the head's Service" "leave it null") -}}
{{- else if has .dnsPolicy (list "Default" "None") -}}
{{- include "llm-ray.refuse" (list (printf "%s.dnsPolicy" $key) .dnsPolicy "be one that knows the cluster's Services, or pods never find the head's" "leave it null; specOverrides can set a dnsConfig together with it") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Variables that KubeRay refuses or that contradict other values. Usage: (list KEY ENV) */}}
{{- define "llm-ray.validate.env" -}}
{{- $key := index . 0 -}}
{{- $instead := dict "RAY_REDIS_ADDRESS" "faultTolerance.gcs.redis.address" "REDIS_PASSWORD" "faultTolerance.gcs.redis.existingSecret"
  "REDIS_USERNAME" "faultTolerance.gcs.redis.username" "RAY_enable_autoscaler_v2" "autoscaling.mode" "RAY_AUTH_MODE" "auth.rayToken.enabled"
  "RAY_AUTH_TOKEN" "auth.rayToken.existingSecret" "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH" "monitoring.tracing.enabled"
  "RAY_OVERRIDE_LABELS" "rayLabels" "LLM_RAY_GANG" "autoscaling.mode" "LLM_RAY_HOST" "autoscaling.mode" -}}
{{- range $name, $value := index . 1 -}}
{{- if and (hasKey $instead $name) (not (kindIs "invalid" $value)) -}}
{{- include "llm-ray.refuse" (list $key $name "hold no variable that the chart or KubeRay sets itself" (printf "set %s instead" (index $instead $name))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Parameters that other values set, or other objects count on. Usage: (list KEY SPEC INSTEAD) */}}
{{- define "llm-ray.validate.rayStartParams" -}}
{{- $key := index . 0 -}}
{{- $instead := merge (dict "labels" (printf "%s.rayLabels" $key) "object-store-memory" (printf "%s.objectStoreMemory" $key)
  "redis-password" "faultTolerance.gcs.redis.existingSecret" "redis-username" "faultTolerance.gcs.redis.username") (index . 2) -}}
{{- range $name, $value := (index . 1).rayStartParams -}}
{{- if kindIs "invalid" $value -}}
{{- else if hasKey $instead $name -}}
{{- include "llm-ray.refuse" (list (printf "%s.rayStartParams.%s" $key $name) $value "be left out, because another value says it" (printf "set %s instead" (index $instead $name))) -}}
{{- else if has $name (list "port" "dashboard-port" "dashboard-agent-listen-port" "metrics-export-port" "ray-client-server-port") -}}
{{- include "llm-ray.refuse" (list (printf "%s.rayStartParams.%s" $key $name) $value "be left out: probes, Services, monitors and network policies count on Ray's own ports" "take it out") -}}
{{- end -}}
{{- end -}}
{{- end -}}
